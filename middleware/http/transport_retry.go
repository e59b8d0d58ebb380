package idemhttp

import (
	"bytes"
	"context"
	"crypto/tls"
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

// repeatable returns the body of the first attempt, and a function for the body of each
// later one. The function is nil if the body cannot be sent again.
func repeatable(req *http.Request, limit int64) (body io.ReadCloser, again func() (io.ReadCloser, error), err error) {
	switch body := req.Body; {
	case body == nil || body == http.NoBody:
		return body, func() (io.ReadCloser, error) { return body, nil }, nil
	case req.GetBody != nil:
		return body, req.GetBody, nil
	case req.ContentLength > limit:
		return body, nil, nil
	}
	read, err := io.ReadAll(io.LimitReader(req.Body, limit+1))
	if err == nil && int64(len(read)) > limit {
		return readCloser{io.MultiReader(bytes.NewReader(read), req.Body), req.Body}, nil, nil
	}
	if closed := req.Body.Close(); err == nil {
		err = closed
	}
	again = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(read)), nil }
	body, _ = again()
	return body, again, err
}

type readCloser struct {
	io.Reader
	io.Closer
}

// maxHead is how much of a problem of unknown length is read ahead, in bytes.
const maxHead = 64 << 10

// send sends one attempt. If the length of the response is known, send reads it to its
// end, because the request can be sent again if the response breaks off. It also reads
// the problem of a conflict, which says whether to send the request again. head is what
// was read.
func (t *Transport) send(req *http.Request) (resp *http.Response, head []byte, err error) {
	if resp, err = t.base.RoundTrip(req); err != nil {
		return resp, nil, err
	}
	length := resp.ContentLength
	known := length > 0 && length <= t.options.responseBuffer
	if !known && !isConflict(resp) || req.Method == http.MethodHead {
		return resp, nil, nil
	}
	if known {
		head = make([]byte, length)
		if _, err = io.ReadFull(resp.Body, head); err == nil {
			_, err = io.Copy(io.Discard, resp.Body) // trailers
		}
	} else {
		head, err = io.ReadAll(io.LimitReader(resp.Body, maxHead))
	}
	if err != nil {
		_ = resp.Body.Close()
		return nil, nil, fmt.Errorf("idemhttp: the response broke off: %w", err)
	}
	resp.Body = readCloser{io.MultiReader(bytes.NewReader(head), resp.Body), resp.Body}
	return resp, head, nil
}

// isConflict reports whether a response is a conflict with a problem (RFC 9457).
func isConflict(resp *http.Response) bool {
	mediaType, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return resp.StatusCode == http.StatusConflict && mediaType == "application/problem+json"
}

// verdict reads the answer to one attempt of a request with a key, and reports whether
// sending the request again may help. asked is the pause from the server.
func verdict(resp *http.Response, head []byte, err error) (asked time.Duration, again bool) {
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
		var problem struct {
			Code idem.Code `json:"code"`
		}
		if isConflict(resp) && json.Unmarshal(head, &problem) == nil {
			return asked, problem.Code == idem.CodeInProgress || problem.Code == "" && told
		}
		return asked, told
	}
	return 0, false
}

// transient reports whether an error may be gone the next time, as all errors of
// connections may be.
func transient(err error) bool {
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	return !unverified && !errors.Is(err, context.Canceled) && !errors.Is(err, http.ErrSchemeMismatch) &&
		!strings.Contains(err.Error(), "unsupported protocol scheme") // net/http has no value for it
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
