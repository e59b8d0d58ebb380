package idemhttp

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

// verdict reads the answer to one attempt, of a request with a key: may sending
// it again help? asked is how long the server wants to be left alone.
func verdict(resp *http.Response, err error) (asked time.Duration, again bool) {
	if err != nil {
		return 0, transient(err)
	}
	if resp.Header.Get(exchange.ReplayedHeader) != "" {
		return 0, false // stored: it is what the next one would be told as well
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

// transient says whether an error may be gone the next time. All errors of
// connections may be; the request's context has the last word elsewhere.
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

// retryAfter reads RFC 9110, section 10.2.3: seconds, or a date. told is false
// for anything else.
func retryAfter(s string, now time.Time) (d time.Duration, told bool) {
	const most = 1 << 31 // seconds; longer than anybody waits
	if n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 64); err == nil {
		return time.Duration(min(n, most)) * time.Second, true
	}
	if at, err := http.ParseTime(s); err == nil {
		return max(at.Sub(now), 0), true
	}
	return 0, false
}

// problemCode reads the code of a problem+json body (RFC 9457), and puts the
// body back. It is "" where there is none.
func problemCode(resp *http.Response) idem.Code {
	if mediaType, _, err := mime.ParseMediaType(resp.Header.Get("Content-Type")); err != nil || mediaType != "application/problem+json" {
		return ""
	}
	const enough = 64 << 10
	read, err := io.ReadAll(io.LimitReader(resp.Body, enough))
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

// failed gives an error back that a reader has given once.
type failed struct{ err error }

func (f failed) Read([]byte) (int, error) { return 0, f.err }
