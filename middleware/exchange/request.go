package exchange

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// read makes an operation of a request with its key, scope and body. Every error is a
// [*idem.Refusal], and nothing has been touched then. The engine finds a malformed JSON
// body, because it asks for the fingerprint first.
func (rt *Route) read(c *Call, policy *idem.Policy) (idem.Operation, []byte, error) {
	r := c.Request
	key, scope, err := rt.keyAndScope(c, policy)
	if err != nil {
		return idem.Operation{}, nil, err
	}
	operation := ""
	if rt.cfg.Operation != nil { // it gets the request as it came, and must not read the body
		operation = rt.cfg.Operation(c.known())
	}
	body, err := readBody(r, c.Kept, policy.MaxRequestBody)
	if err != nil {
		return idem.Operation{}, nil, err
	}
	if operation == "" {
		operation = r.Method + " " + path(r)
	}
	parts := idem.RequestParts{
		Operation:       "http " + operation,
		Query:           r.URL.RawQuery,
		ContentType:     strings.Join(r.Header["Content-Type"], ", "),
		ContentEncoding: strings.Join(r.Header["Content-Encoding"], ", "),
		Header:          rt.compared(r),
		Body:            body,
	}
	return idem.Operation{
		Transport: idem.TransportHTTP,
		Scope:     scope,
		Key:       key,
		Policy:    policy,
		Fingerprint: func(version uint8) (driver.Fingerprint, error) {
			return idem.RequestFingerprint(version, parts)
		},
	}, body, nil
}

// readWithoutKey is read for a request without a key. The body is read first as well, so that no transaction waits for a
// slow client. One that middleware in front has used up is left to the handler, which ran so before. gone reports that.
func (rt *Route) readWithoutKey(c *Call, policy *idem.Policy) (op idem.Operation, body []byte, gone bool, err error) {
	body, err = readBody(c.Request, c.Kept, policy.MaxRequestBody)
	if errors.Is(err, errBodyConsumed) {
		gone, err = true, nil
	}
	op = idem.Operation{Transport: idem.TransportHTTP, Policy: policy}
	op.Scope, _ = rt.scope(c, policy) // for limits alone, so it may be unknown
	return op, body, gone, err
}

func (rt *Route) keyAndScope(c *Call, policy *idem.Policy) (idem.Key, string, error) {
	key, err := idem.ParseKey(c.Request.Header[rt.cfg.Header])
	if err != nil {
		return "", "", err
	}
	scope, err := rt.scope(c, policy)
	return key, scope, err
}

// requestKey is the key of the request in the context for [Config].Scope.
type requestKey struct{}

func (rt *Route) scope(c *Call, policy *idem.Policy) (string, error) {
	ctx := cmp.Or(c.Context, c.Request.Context())
	if rt.cfg.Scope != nil {
		ctx = context.WithValue(ctx, requestKey{}, c.known())
	}
	return policy.ScopeOf(ctx)
}

// known returns the request for the functions of a [Config], whose context has what the framework
// knows.
func (c *Call) known() *http.Request {
	if c.Context == nil {
		return c.Request
	}
	return c.Request.WithContext(c.Context)
}

// refusing returns the request for [Config].Refuse.
func (c *Call) refusing() *http.Request {
	if c.Refusing == nil {
		return c.known()
	}
	return c.Request.WithContext(c.Refusing)
}

// path returns the path in the client's request. Middleware such as http.StripPrefix
// cuts the path in r.URL, and two routes would look the same. A target in absolute form
// ("http://host/path", RFC 9112 section 3.2.2) is the same request as its path alone.
func path(r *http.Request) string {
	target, _, _ := strings.Cut(r.RequestURI, "?")
	if strings.HasPrefix(target, "/") {
		return target
	}
	if _, rest, absolute := strings.Cut(target, "://"); absolute {
		_, path, _ := strings.Cut(rest, "/")
		return "/" + path
	}
	return r.URL.EscapedPath()
}

// compared returns the headers of [Config].Compare.
func (rt *Route) compared(r *http.Request) map[string][]string {
	if len(rt.cfg.Compare) == 0 {
		return nil
	}
	header := make(map[string][]string, len(rt.cfg.Compare))
	for _, name := range rt.cfg.Compare {
		header[name] = r.Header[name]
		if name == "Host" { // net/http takes it out of the headers
			header[name] = []string{strings.ToLower(r.Host)}
		}
	}
	return header
}

// input is the request that each run of a handler gets, with nothing of what an earlier run has
// done to it.
type input struct {
	request *http.Request
	body    []byte
	gone    bool          // the body is not ours to give, and there is one run only
	run     *http.Request // the latest
}

// next returns the request of the next run.
func (in *input) next(ctx context.Context) *http.Request {
	in.removeFiles()
	if in.gone {
		return in.request.WithContext(ctx)
	}
	r := in.request.Clone(ctx)
	if r.MultipartForm != nil { // its files are those of middleware in front, and a handler may remove them
		r.Form, r.PostForm, r.MultipartForm = nil, nil, nil
	}
	in.run = restore(r, in.body)
	return r
}

// removeFiles removes the temporary files of the latest run.
func (in *input) removeFiles() {
	if in.run != nil && in.run.MultipartForm != nil {
		_ = in.run.MultipartForm.RemoveAll()
	}
}

// end leaves the files of the last run to the server, which removes them with the request. It
// knows one form only. If that is of middleware in front, the files of the run are removed here.
func (in *input) end() {
	switch {
	case in.run == nil:
	case in.request.MultipartForm == nil:
		in.request.MultipartForm = in.run.MultipartForm
	default:
		in.removeFiles()
	}
}
