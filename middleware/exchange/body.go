package exchange

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"reflect"

	"github.com/idemkeeper/idemkeeper/idem"
)

// This file is about reading a body that middleware in front may have read, replaced or limited.
// Two different requests must never look the same because their bodies are gone, and a body that
// is there must be taken.

var errBodyConsumed = errors.New("the request body was read before the middleware saw it: read it there with exchange.ReadBody, which puts it back, or in Gin with c.ShouldBindBodyWithJSON and its like, which keep it")

// emptyAdvice is for a client that sent an empty body without its length. It looks like a body that
// middleware in front has read.
const emptyAdvice = "The server found an empty request body of unknown length. A request without a body needs Content-Length: 0."

// ReadBody reads the body of a request as the middleware does, and puts it back. It is for
// validation in front of the middleware. The error is a [*idem.Refusal]. A body over limit bytes is
// refused as body-too-large, one that breaks off or stalls as body-incomplete, and one that was read
// before as internal. The caller is the first to read the body. So an empty body of unknown length is
// taken for what it is, and the middleware takes it too.
func ReadBody(r *http.Request, limit int64) ([]byte, error) {
	body, err := readBody(r, nil, limit)
	if refusal, refused := errors.AsType[*idem.Refusal](err); refused && refusal.Advice == emptyAdvice {
		err = nil
	}
	if err == nil {
		restore(r, body)
	}
	return body, err
}

// readBody reads the body as it was received, compressed or not. A body announced as longer than the
// limit is refused. A client with "Expect: 100-continue" then does not send it. Any other client is
// sending it already, and up to limit bytes of it are thrown away, because the server may reset the
// connection over the rest before such a client reads the answer. kept is [Call].Kept.
func readBody(r *http.Request, kept []byte, limit int64) ([]byte, error) {
	source := r.Body
	if source == nil {
		source = http.NoBody
	}
	if r.ContentLength > limit {
		if r.Header.Get("Expect") == "" {
			_, _ = io.CopyN(io.Discard, source, limit)
		}
		return nil, tooLarge(limit)
	}
	own := received(source)
	body, err := io.ReadAll(io.LimitReader(source, limit+1))
	if int64(len(body)) > limit {
		return nil, tooLarge(limit)
	}
	if over, ok := errors.AsType[*http.MaxBytesError](err); ok { // a limit of middleware outside
		return nil, tooLarge(over.Limit)
	}
	switch consumed, advice := consumed(r, own, len(body), err); {
	case consumed && kept != nil && int64(len(kept)) > limit:
		return nil, tooLarge(limit)
	case consumed && kept != nil:
		return kept, nil
	case consumed:
		return nil, &idem.Refusal{Code: idem.CodeInternal, Err: errBodyConsumed, Advice: advice}
	case err != nil && incomplete(r, own, err):
		return nil, idem.NewRefusal(idem.CodeBodyIncomplete, fmt.Errorf("reading the request body: %w", err))
	case err != nil:
		return nil, idem.NewRefusal(idem.CodeBodyInvalid, fmt.Errorf("reading the request body: %w", err))
	}
	return body, nil
}

// consumed reports whether the body was read in front. own says that it is the server's reader, n
// is how many bytes were left, and err is the error of reading them. Middleware in front that
// decompresses or decrypts a body leaves the old length. So a body that is too short proves it only
// if the reader is the server's own. A part that was read of a body of unknown length does not show.
func consumed(r *http.Request, own bool, n int, err error) (_ bool, advice string) {
	switch {
	case errors.Is(err, http.ErrBodyReadAfterClose), n == 0 && (r.MultipartForm != nil || len(r.PostForm) > 0):
		return true, ""
	case err != nil:
		return false, ""
	case n == 0 && r.ContentLength < 0:
		return true, emptyAdvice
	}
	return (n == 0 || own) && int64(n) < r.ContentLength, ""
}

// incomplete reports whether a body that could not be read did not arrive, because the client stalls
// or is gone. The body of a replaced reader may end too early for reasons of its own.
func incomplete(r *http.Request, own bool, err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || r.Context().Err() != nil ||
		own && errors.Is(err, io.ErrUnexpectedEOF)
}

// received reports whether body is the reader of the server, also within the wrappers of net/http.
// Their types are not exported. A type that is not known counts as a reader of middleware in front.
func received(body io.ReadCloser) bool {
	for v := reflect.ValueOf(body); ; {
		if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
			return false
		}
		v = v.Elem()
		switch v.Type().PkgPath() {
		case "net/http", "golang.org/x/net/http2":
		default:
			return false
		}
		inner := v.FieldByName("r") // of http.MaxBytesReader
		if !inner.IsValid() {
			inner = v.FieldByName("readCloser") // of a body that waits for "100 Continue"
		}
		if !inner.IsValid() || inner.Kind() != reflect.Interface {
			return true
		}
		v = inner.Elem()
	}
}

func tooLarge(limit int64) error {
	return idem.NewRefusal(idem.CodeBodyTooLarge, fmt.Errorf("request body over %d bytes", limit))
}

// restore puts the body back into r. It leaves GetBody unset, as the server does. net/http would
// take a request with GetBody and an Idempotency-Key for one that it may send again, and a
// handler that forwards its request would have several effects in one execution.
func restore(r *http.Request, body []byte) *http.Request {
	r.Body, r.GetBody = io.NopCloser(bytes.NewReader(body)), nil
	r.ContentLength, r.TransferEncoding = int64(len(body)), nil
	return r
}
