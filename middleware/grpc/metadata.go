package idemgrpc

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/metadata"
)

// replayed is the metadata that a stored outcome keeps, all values of each: the
// names that HTTP keeps too, without those that gRPC sets by itself.
var replayed = []string{"content-language", "etag", "location"}

// neverReplayed belongs to one exchange or one caller: cookies and credentials,
// the date, and what concerns one connection (RFC 9110, section 7.6.1).
var neverReplayed = []string{
	"authentication-info", "authorization", "connection", "content-length", "content-type", "cookie", "date", "host",
	"keep-alive", "proxy-authenticate", "proxy-authentication-info", "proxy-authorization", "proxy-connection",
	"set-cookie", "set-cookie2", "te", "trailer", "transfer-encoding", "upgrade", "user-agent", "www-authenticate",
	ReplayedMetadataKey,
}

// nameSet holds names in lower case.
type nameSet map[string]struct{}

func newNameSet(more []string) (nameSet, error) {
	set := make(nameSet, len(replayed)+len(more))
	for _, name := range replayed {
		set[name] = struct{}{}
	}
	for _, name := range more {
		name = strings.ToLower(name)
		if !isMetadataName(strings.TrimSuffix(name, binarySuffix)) {
			return nil, fmt.Errorf("%q is not the name of metadata", name)
		}
		if slices.Contains(neverReplayed, name) || strings.HasPrefix(name, "grpc-") {
			return nil, fmt.Errorf("metadata %s belongs to one exchange and is never replayed", name)
		}
		set[name] = struct{}{}
	}
	return set, nil
}

// pick copies what is kept of a handler's metadata.
func (s nameSet) pick(md metadata.MD) map[string][]string {
	var kept map[string][]string
	for name, values := range md {
		name = strings.ToLower(name)
		if _, ok := s[name]; !ok || len(values) == 0 {
			continue
		}
		if kept == nil {
			kept = make(map[string][]string, 2)
		}
		kept[name] = append(kept[name], values...)
	}
	return kept
}

// stored is metadata as it was stored. It is checked again: a resolver or an
// operator may have made it.
func (s nameSet) stored(fields map[string][]string) metadata.MD {
	md := make(metadata.MD, len(fields)+1)
	for name, values := range fields {
		name = strings.ToLower(name)
		if _, ok := s[name]; !ok {
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(name, binarySuffix) || isPrintable(v) {
				md[name] = append(md[name], v)
			}
		}
	}
	return md
}

// binarySuffix marks metadata whose values are bytes.
const binarySuffix = "-bin"

// isMetadataName is the rule of gRPC's wire format for names of text metadata.
func isMetadataName(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '_', c == '-', c == '.':
		default:
			return false
		}
	}
	return s != "" && !strings.HasSuffix(s, binarySuffix) && !strings.HasPrefix(s, "grpc-")
}

func isPrintable(s string) bool {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}
