// Package adapter has the rules of all transports for options, for the fields of an answer
// to replay, and for the errors a client may see.
package adapter

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Apply applies options in their order. A nil option is ignored.
func Apply[T any, O ~func(*T)](to *T, opts []O) {
	for _, opt := range opts {
		if opt != nil {
			opt(to)
		}
	}
}

// One returns the config of an adapter, the zero value if it was left out.
func One[C any](cfg []C) (c C, err error) {
	if len(cfg) > 1 {
		return c, fmt.Errorf("%d configs, at most one is possible", len(cfg))
	}
	if len(cfg) == 1 {
		c = cfg[0]
	}
	return c, nil
}

// Must panics if the wiring is wrong. Otherwise it returns v.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// RefusalOf returns the refusal in an error. A client does not see any other error, so
// the refusal is then internal.
func RefusalOf(err error) *idem.Refusal {
	if r, ok := errors.AsType[*idem.Refusal](err); ok {
		return r
	}
	return idem.NewRefusal(idem.CodeInternal, err)
}

var errRelayed = errors.New("the handler's answer does not tell whether it had an effect")

// Relayed returns the error of a handler that answered with the refusal of a service it
// called, or of middleware inside. Such a refusal says nothing about the outcome of this
// handler's operation. The outcome is in doubt, and the client gets a refusal of the engine, so
// that it does not read another service's code as ours. An empty code stands for an answer that
// is no refusal, and Relayed returns nil.
func Relayed[C ~string](code C) error {
	if code == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", errRelayed, code)
}

// TooLong returns the refusal of a request that has succeeded, and whose response is too long to be held until
// that was known.
func TooLong(err error, keyed bool) *idem.Refusal {
	r := idem.NewRefusal(idem.CodeResultUnavailable, err)
	if !keyed {
		r.Advice = "The operation was completed, and its result is too long to be sent. Do not send the request again."
	}
	return r
}

// ComeBack returns the refusal of a request whose handler asked the client to come back after a
// pause. 0 means that it did not ask.
func ComeBack(r *idem.Refusal, pause time.Duration) *idem.Refusal {
	if pause <= 0 {
		return r
	}
	told := *r
	told.RetryAfter = pause
	return &told
}

// StatusPolicies returns the policies for [idem.Engine.Status], where the first one for a
// route counts. These are listed, and then own.
func StatusPolicies(listed []idem.Policy, own ...*idem.Policy) ([]*idem.Policy, error) {
	var policies []*idem.Policy
	seen := make(map[string]bool)
	for _, p := range listed {
		if p.Name == "" {
			return nil, errors.New("a status policy without a route")
		}
		if seen[p.Name] {
			return nil, fmt.Errorf("two status policies for the route %q", p.Name)
		}
		seen[p.Name] = true
		policies = append(policies, &p)
	}
	return append(policies, own...), nil
}

// MarkerHeader marks an answer as a stored outcome, with the value Marker. In gRPC it is metadata of
// the same name in lower case.
const (
	MarkerHeader = "Idempotent-Replayed"
	Marker       = "true"
)

// never lists the fields of one exchange or one caller. These are session cookies,
// credentials, the date, fields of one connection (RFC 9110, section 7.6.1), and what depends on the
// origin or the abilities of the caller. Middleware in front sets the latter for each request, and a
// stored value would replace it.
var never = []string{
	"Age", "Alt-Svc", "Authentication-Info", "Authorization", "Clear-Site-Data", "Connection", "Content-Length", "Cookie",
	"Date", "Host", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization",
	"Proxy-Connection", "Sec-Websocket-Accept", "Set-Cookie", "Set-Cookie2", "Te", "Timing-Allow-Origin", "Trailer",
	"Transfer-Encoding", "Upgrade", "User-Agent", "Vary", "Via", "Www-Authenticate", MarkerHeader,
}

// corsPrefix begins the fields by which a server answers an origin (Fetch standard, section 3.3).
const corsPrefix = "Access-Control-"

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
		if slices.Contains(never, canonical) || strings.HasPrefix(canonical, corsPrefix) {
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

// CheckMethods refuses what is no method. A method is its exact text, so "post" would be none of any request.
func CheckMethods(methods []string) error {
	for _, m := range methods {
		if !IsToken(m) || m != strings.ToUpper(m) {
			return fmt.Errorf("%q is not a method, which is a word in capital letters", m)
		}
	}
	return nil
}

// IsSafe reports whether a method has no effects by its definition (RFC 9110, section
// 9.2.1, and draft-ietf-httpbis-safe-method-w-body for QUERY). net/http takes "" for GET.
func IsSafe(method string) bool {
	return slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, "QUERY", ""}, method)
}

// Has reports whether a field is replayed. The name may be in any case.
func (n Names) Has(name string) bool { return n[http.CanonicalHeaderKey(name)] }
