package idemhttp

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// requestBody is a request's body, attempt by attempt.
type requestBody struct {
	first io.ReadCloser                 // of the first attempt; nil once it was handed out, or for no body
	more  func() (io.ReadCloser, error) // of the others; nil where there cannot be any
}

// readRequest prepares a body to be sent more than once. It takes over the
// request's own body, which is closed in any case.
func readRequest(req *http.Request, limit int64) (*requestBody, error) {
	switch {
	case req.Body == nil || req.Body == http.NoBody:
		none := func() (io.ReadCloser, error) { return req.Body, nil }
		return &requestBody{first: req.Body, more: none}, nil
	case req.GetBody != nil:
		return &requestBody{first: req.Body, more: req.GetBody}, nil
	case req.ContentLength > limit:
		return &requestBody{first: req.Body}, nil
	}
	read, err := io.ReadAll(io.LimitReader(req.Body, limit+1))
	if err != nil {
		_ = req.Body.Close()
		return nil, err
	}
	if int64(len(read)) > limit {
		rest := readCloser{io.MultiReader(bytes.NewReader(read), req.Body), req.Body}
		return &requestBody{first: rest}, nil
	}
	if err := req.Body.Close(); err != nil {
		return nil, err
	}
	again := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(read)), nil }
	b := &requestBody{more: again}
	b.first, _ = again()
	return b, nil
}

// again says whether there can be another attempt.
func (b *requestBody) again() bool { return b.more != nil }

// next returns the body of the next attempt.
func (b *requestBody) next() (io.ReadCloser, error) {
	if first := b.first; first != nil {
		b.first = nil
		return first, nil
	}
	return b.more()
}

type readCloser struct {
	io.Reader
	io.Closer
}

// preload reads a response of known length, so that one that breaks off is an
// error here and not later, when nobody can send the request again.
func (t *Transport) preload(resp *http.Response) error {
	n := resp.ContentLength
	if n <= 0 || n > t.options.responseBuffer || resp.StatusCode == http.StatusSwitchingProtocols ||
		resp.Request != nil && resp.Request.Method == http.MethodHead {
		return nil
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(resp.Body, body); err != nil {
		return fmt.Errorf("idemhttp: the response broke off: %w", err)
	}
	// What follows is trailers, or nothing.
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return fmt.Errorf("idemhttp: the response broke off: %w", err)
	}
	resp.Body = readCloser{bytes.NewReader(body), resp.Body}
	return nil
}
