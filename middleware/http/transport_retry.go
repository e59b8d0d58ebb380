package idemhttp

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// repeatable returns the body of the first attempt, and a function for the body of each
// later one. The function is nil if the body cannot be sent again.
func repeatable(req *http.Request) (body io.ReadCloser, again func() (io.ReadCloser, error), err error) {
	switch body := req.Body; {
	case body == nil || body == http.NoBody:
		return body, func() (io.ReadCloser, error) { return body, nil }, nil
	case req.GetBody != nil:
		return body, req.GetBody, nil
	case req.ContentLength > maxBuffer:
		return body, nil, nil
	}
	read, err := io.ReadAll(io.LimitReader(req.Body, maxBuffer+1))
	if err == nil && len(read) > maxBuffer {
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
	known := length > 0 && length <= maxBuffer
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

// verdict reads the answer to one attempt of a request with a key, and says whether sending the
// request again may help.
func verdict(resp *http.Response, head []byte, err error) resend.Advice {
	if err != nil {
		return resend.Advice{Again: transient(err)}
	}
	if resp.StatusCode < 400 || resp.Header.Get(exchange.ReplayedHeader) == exchange.Replayed {
		return resend.Advice{} // done, or the outcome, which does not change
	}
	asked, told := retryAfter(resp.Header.Get("Retry-After"), time.Now())
	advice := resend.Advice{Asked: asked}
	switch status := resp.StatusCode; {
	case told && mayWait(status):
		advice.Again = true
	case status == http.StatusTooManyRequests, status == http.StatusBadGateway, status == http.StatusServiceUnavailable, status == http.StatusGatewayTimeout:
		advice.Again = true
	case status == http.StatusConflict:
		var problem struct {
			Code idem.Code `json:"code"`
		}
		advice.Again = isConflict(resp) && json.Unmarshal(head, &problem) == nil && problem.Code == idem.CodeInProgress
	case status == http.StatusRequestTimeout, status == statusClientClosed, status >= 500: // nothing is decided
		advice.Again, advice.Once = true, true
	}
	return advice
}

// mayWait reports whether Retry-After means that the request may be sent again unchanged.
func mayWait(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusConflict, http.StatusRequestEntityTooLarge, http.StatusTooEarly, http.StatusTooManyRequests, statusClientClosed:
		return true
	}
	return status >= 500
}

// statusClientClosed is what gateways write for a call that was cancelled in its middle.
const statusClientClosed = 499

// hashOf returns a hash of what tells a request from another one.
func hashOf(req *http.Request, bodyAgain func() (io.ReadCloser, error)) (hash [sha256.Size]byte, err error) {
	if bodyAgain == nil {
		return resend.Incomparable(), nil
	}
	body, err := bodyAgain()
	if err != nil {
		return hash, fmt.Errorf("idemhttp: getting the request body again: %w", err)
	}
	h := sha256.New()
	_, _ = fmt.Fprintf(h, "%q %q %q\n", req.Method, req.Host, req.URL)
	if body != nil {
		defer func() { _ = body.Close() }()
		if _, err := io.Copy(h, body); err != nil {
			return hash, fmt.Errorf("idemhttp: reading the request body: %w", err)
		}
	}
	return [sha256.Size]byte(h.Sum(nil)), nil
}

// sendOnce keeps net/http from sending a request without a body again by itself, as it does with
// one that has a key. net/http does not send a body of its own accord twice, not even an empty one.
// "identity" keeps HTTP/1 from sending that in chunks, which looks like a body that was lost on the
// way. The request has no Content-Length then, as one without a body may.
func sendOnce(req *http.Request) {
	if req.Body == nil || req.Body == http.NoBody {
		req.Body, req.TransferEncoding = io.NopCloser(strings.NewReader("")), []string{"identity"}
	}
}

// neverConnected reports whether nothing of the request can have reached the server.
func neverConnected(err error) bool {
	failed, ok := errors.AsType[*net.OpError](err)
	return ok && failed.Op == "dial"
}

func closeBody(req *http.Request) {
	if req.Body != nil {
		_ = req.Body.Close()
	}
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
