package adapter

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
)

// MarkerHeader marks an answer as a stored outcome. In gRPC it is metadata of the
// same name in lower case.
const MarkerHeader = "Idempotent-Replayed"

// never lists the fields of one exchange or one caller: session cookies and
// credentials, the date, and fields of one connection (RFC 9110, section 7.6.1).
var never = []string{
	"Authentication-Info", "Authorization", "Connection", "Content-Length", "Cookie", "Date", "Host", "Keep-Alive",
	"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection", "Set-Cookie",
	"Set-Cookie2", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "User-Agent", "Www-Authenticate", MarkerHeader,
}

// Names is the allow-list of a route. Its keys are canonical names
// ([http.CanonicalHeaderKey]).
type Names map[string]bool

// NewNames returns the names in base and more. valid reports whether a field can have a
// name. The error says which name in more is not valid or is never replayed.
func NewNames(base, more []string, valid func(string) bool) (Names, error) {
	names := make(Names, len(base)+len(more))
	for _, name := range base {
		names[http.CanonicalHeaderKey(name)] = true
	}
	for _, name := range more {
		canonical := http.CanonicalHeaderKey(name)
		if !valid(name) {
			return nil, fmt.Errorf("%q is not the name of a header or of metadata", name)
		}
		if slices.Contains(never, canonical) {
			return nil, fmt.Errorf("%s belongs to one exchange and is never replayed", name)
		}
		names[canonical] = true
	}
	return names, nil
}

var token = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// IsToken reports whether s is a token (RFC 9110, section 5.6.2), as methods and header
// names are.
func IsToken(s string) bool { return token.MatchString(s) }

// IsSafe reports whether a method has no effects by its definition (RFC 9110, section
// 9.2.1). net/http takes "" for GET.
func IsSafe(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "":
		return true
	}
	return false
}

// Has reports whether a field is replayed. The name may be in any case.
func (n Names) Has(name string) bool { return n[http.CanonicalHeaderKey(name)] }
