package idemhttp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

// bodies returns a function for the body of one attempt after the other, and whether
// there can be more than one. It takes over the request's own body and closes it in any
// case.
func bodies(req *http.Request, limit int64) (next func() (io.ReadCloser, error), more bool, err error) {
	only := func(body io.ReadCloser) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return body, nil }
	}
	switch first := req.Body; {
	case first == nil || first == http.NoBody:
		return only(first), true, nil
	case req.GetBody != nil:
		return func() (io.ReadCloser, error) {
			if body := first; body != nil {
				first = nil
				return body, nil
			}
			return req.GetBody()
		}, true, nil
	case req.ContentLength > limit:
		return only(first), false, nil
	}
	read, err := io.ReadAll(io.LimitReader(req.Body, limit+1))
	if err == nil && int64(len(read)) > limit {
		return only(readCloser{io.MultiReader(bytes.NewReader(read), req.Body), req.Body}), false, nil
	}
	if closed := req.Body.Close(); err == nil {
		err = closed
	}
	return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(read)), nil }, true, err
}

type readCloser struct {
	io.Reader
	io.Closer
}

// preload reads a response of known length. If it breaks off, the request can still be
// sent again.
func (t *Transport) preload(resp *http.Response) error {
	n := resp.ContentLength
	if n <= 0 || n > t.options.responseBuffer || resp.StatusCode == http.StatusSwitchingProtocols ||
		resp.Request != nil && resp.Request.Method == http.MethodHead {
		return nil
	}
	body := make([]byte, n)
	_, err := io.ReadFull(resp.Body, body)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body) // trailers
	}
	if err != nil {
		return fmt.Errorf("idemhttp: the response broke off: %w", err)
	}
	resp.Body = readCloser{bytes.NewReader(body), resp.Body}
	return nil
}

// drain reads the rest of a response, within reason, so that its connection can be used
// again.
func drain(resp *http.Response, err error) {
	if resp == nil {
		return
	}
	if err == nil {
		_, _ = io.CopyN(io.Discard, resp.Body, maxRead)
	}
	_ = resp.Body.Close()
}

// maxRead bounds the reading of a response ahead of the caller, in bytes.
const maxRead = 64 << 10

// verdict reads the answer to one attempt of a request with a key, and reports whether
// sending the request again may help. asked is the pause from the server.
func verdict(resp *http.Response, err error) (asked time.Duration, again bool) {
	if err != nil {
		return 0, transient(err)
	}
	if resp.Header.Get(exchange.ReplayedHeader) != "" {
		return 0, false // stored: another attempt gets the same
	}
	asked, told := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return asked, true
	case http.StatusConflict:
		code := problemCode(resp)
		return asked, code == idem.CodeInProgress || code == "" && told
	}
	return 0, false
}

// transient reports whether an error may be gone the next time, as all errors of
// connections may be.
func transient(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		hostname     x509.HostnameError
		invalid      x509.CertificateInvalidError
	)
	switch {
	case errors.Is(err, context.Canceled), errors.As(err, &verification), errors.As(err, &authority),
		errors.As(err, &hostname), errors.As(err, &invalid), errors.Is(err, http.ErrSchemeMismatch):
		return false
	}
	return !strings.Contains(err.Error(), "unsupported protocol scheme") // net/http has no value for it
}

// retryAfter reads RFC 9110, section 10.2.3: seconds, or a date. told is false for
// anything else.
func retryAfter(s string, now time.Time) (d time.Duration, told bool) {
	const most = 1 << 31 // seconds, longer than any call lasts
	if n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64); err == nil {
		return time.Duration(min(n, most)) * time.Second, true
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(at.Sub(now), 0), true
	}
	return 0, false
}

// problemCode reads the code of a problem+json body (RFC 9457), and puts the body back.
// It returns "" for any other body.
func problemCode(resp *http.Response) idem.Code {
	if mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || mediaType != "application/problem+json" {
		return ""
	}
	read, err := io.ReadAll(io.LimitReader(resp.Body, maxRead))
	rest := io.Reader(resp.Body)
	if err != nil {
		rest = failed{err}
	}
	resp.Body = readCloser{io.MultiReader(bytes.NewReader(read), rest), resp.Body}
	var problem struct {
		Code idem.Code `json:"code"`
	}
	if json.Unmarshal(read, &problem) != nil {
		return ""
	}
	return problem.Code
}

// failed returns the earlier error of a reader.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }
