package httpexchange

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

var errBodyConsumed = errors.New("the request body was read before the middleware saw it")

// read makes an operation of a request: key, scope, body. Any error is a
// [*idem.Refusal], and nothing has been touched then. A malformed JSON body is
// found by the engine, which asks for the fingerprint before anything else.
func (x *Exchange) read(c *Call, policy *idem.Policy) (idem.Operation, []byte, error) {
	r := c.Request
	key, err := idem.ParseKey(r.Header[x.header])
	if err != nil {
		return idem.Operation{}, nil, err
	}
	scope, err := policy.ScopeOf(c.ScopeContext)
	if err != nil {
		return idem.Operation{}, nil, err
	}
	body, err := readBody(r, policy.MaxRequestBody)
	if err != nil {
		return idem.Operation{}, nil, err
	}
	operation := c.Operation
	if operation == "" {
		operation = r.Method + " " + path(r)
	}
	parts := idem.RequestParts{
		Operation:       "http " + operation,
		Query:           r.URL.RawQuery,
		ContentType:     strings.Join(r.Header["Content-Type"], ", "),
		ContentEncoding: strings.Join(r.Header["Content-Encoding"], ", "),
		Header:          x.compared(r),
		Body:            body,
	}
	return idem.Operation{
		Transport: idem.TransportHTTP,
		Scope:     scope,
		Key:       key,
		Policy:    policy,
		Fingerprint: func(version uint8) (idem.Fingerprint, error) {
			return idem.RequestFingerprint(version, parts)
		},
	}, body, nil
}

// path is the one that the client asked for. That in r.URL may have been cut on
// the way here, by http.StripPrefix for one, so that two routes look the same. A
// target in absolute form ("http://host/path"; RFC 9112, section 3.2.2) is the same
// request as its path alone.
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

// compared are the headers of a request that are part of it; nil where none are.
func (x *Exchange) compared(r *http.Request) map[string][]string {
	if len(x.cfg.Compare) == 0 {
		return nil
	}
	header := make(map[string][]string, len(x.cfg.Compare))
	for _, name := range x.cfg.Compare {
		header[name] = r.Header[name]
		if name == "Host" { // net/http takes it out of the headers
			header[name] = []string{strings.ToLower(r.Host)}
		}
	}
	return header
}

// readBody reads the body as it was received, compressed or not. One that says
// that it is over the limit is refused before anything of it is read, so that
// a client which sent "Expect: 100-continue" keeps it.
func readBody(r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	// The client says how much there is, which is no reason to believe it.
	const trusted = 64 << 10
	buf := make([]byte, 0, min(max(r.ContentLength, 0), trusted)+bytes.MinRead)
	for {
		n, err := r.Body.Read(buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		switch {
		case int64(len(buf)) > limit:
			return nil, tooLarge(limit)
		case err == io.EOF:
			return buf, checkConsumed(r, buf)
		case err != nil:
			return nil, unreadable(err)
		}
		if len(buf) == cap(buf) {
			buf = append(buf, 0)[:len(buf)]
		}
	}
}

func unreadable(err error) error {
	if over, ok := errors.AsType[*http.MaxBytesError](err); ok { // a limit outside of ours
		return tooLarge(over.Limit)
	}
	if errors.Is(err, http.ErrBodyReadAfterClose) { // in front, not by the client
		return idem.Refuse(idem.CodeInternal, errBodyConsumed)
	}
	return idem.Refuse(idem.CodeBodyInvalid, fmt.Errorf("reading the request body: %w", err))
}

func tooLarge(limit int64) error {
	return idem.Refuse(idem.CodeBodyTooLarge, fmt.Errorf("request body over %d bytes", limit))
}

// checkConsumed notices that somebody in front has read of the body without
// putting it back: different requests would have one fingerprint. Where the client
// did not say how long the body is (chunked, or HTTP/2), an empty one is empty: it
// cannot be told from one that was read, unless that has left a form.
func checkConsumed(r *http.Request, body []byte) error {
	short := int64(len(body)) < r.ContentLength
	gone := len(body) == 0 && (r.MultipartForm != nil || len(r.PostForm) > 0)
	if short || gone {
		return idem.Refuse(idem.CodeInternal, errBodyConsumed)
	}
	return nil
}

// restore gives the handler the body that has been read. r is the handler's
// own shallow copy.
func restore(r *http.Request, body []byte) *http.Request {
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	r.Body, _ = r.GetBody()
	r.ContentLength, r.TransferEncoding = int64(len(body)), nil
	return r
}
