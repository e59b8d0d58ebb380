package httpexchange

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// replayed are the headers that a stored response keeps, all values of each.
var replayed = []string{
	"Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Etag", "Location",
}

// neverReplayed are headers that belong to one exchange or one caller: session
// cookies and credentials, the date, and what concerns one connection (RFC
// 9110, section 7.6.1).
var neverReplayed = []string{
	"Authentication-Info", "Authorization", "Connection", "Content-Length", "Cookie", "Date", "Keep-Alive",
	"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie",
	"Set-Cookie2", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Www-Authenticate", ReplayedHeader,
}

// headerSet holds canonical names.
type headerSet map[string]struct{}

func newHeaderSet(more []string) (headerSet, error) {
	set := make(headerSet, len(replayed)+len(more))
	for _, name := range replayed {
		set[name] = struct{}{}
	}
	for _, name := range more {
		if !isToken(name) {
			return nil, fmt.Errorf("%q is not a header name", name)
		}
		name = http.CanonicalHeaderKey(name)
		if slices.Contains(neverReplayed, name) || strings.HasPrefix(name, http.TrailerPrefix) {
			return nil, fmt.Errorf("header %s belongs to one exchange and is never replayed", name)
		}
		set[name] = struct{}{}
	}
	return set, nil
}

// pick copies what is kept of a handler's headers. What was there before the
// handler ran is left out: whoever set it sets it for a replay, too, and knows
// whether it still applies ("Content-Encoding: gzip" of a compressor outside).
func (s headerSet) pick(header, before http.Header) map[string][]string {
	var kept map[string][]string
	for name := range s {
		values := header[name]
		if len(values) == 0 || slices.Equal(values, before[name]) {
			continue
		}
		if kept == nil {
			kept = make(map[string][]string, 2)
		}
		kept[name] = slices.Clone(values)
	}
	return kept
}

// put writes stored headers. They are checked again: a resolver or an operator
// may have made them.
func (s headerSet) put(dst http.Header, stored map[string][]string) {
	for name, values := range stored {
		name = http.CanonicalHeaderKey(name)
		if _, ok := s[name]; ok {
			dst[name] = slices.Clone(values)
		}
	}
}

// replace makes dst equal to src without replacing the map.
func replace(dst, src http.Header) {
	clear(dst)
	maps.Copy(dst, src)
}

// isToken reports whether s is a token (RFC 9110, section 5.6.2).
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}
