package exchange

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// This file is about handlers that answer with a refusal by a called service, or by
// middleware inside. The refusal has no information about the outcome of this handler's
// operation. So the status does not count, and the outcome is in doubt.

var errRelayed = errors.New("the handler answered with a refusal")

// relayed is the handler's error. It leaves the outcome in doubt, and the answer is not
// stored.
func relayed(code idem.Code) error { return fmt.Errorf("%w: %s", errRelayed, code) }

// isRelayed reports whether the engine has returned the handler's error. A refusal around
// it is the engine's own.
func isRelayed(err error) bool {
	_, refused := errors.AsType[*idem.Refusal](err)
	return !refused && errors.Is(err, errRelayed)
}

// maxProblem is how much of a problem is read, in bytes. Refusals are shorter.
const maxProblem = 64 << 10

// unreadable is the code of a problem in an unknown encoding. It counts as a refusal,
// because it may be one.
const unreadable idem.Code = "a problem that cannot be read"

// relayed returns the code of the refusal in the handler's answer, or "".
func (w *Writer) relayed() idem.Code {
	if w.hijacked || !isProblem(w.final()) {
		return ""
	}
	if w.elsewhere {
		return unreadable
	}
	body := w.body
	if w.streamed {
		body = w.tapped
	}
	var r io.Reader = bytes.NewReader(body)
	switch encoding := strings.ToLower(strings.Join(w.final()["Content-Encoding"], ", ")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return ""
		}
		r = z
	default:
		return unreadable
	}
	var problem struct {
		Code idem.Code `json:"code"`
	}
	if json.NewDecoder(io.LimitReader(r, maxProblem)).Decode(&problem) != nil || !problem.Code.Known() {
		return ""
	}
	return problem.Code
}

// tap keeps the beginning of a streamed problem.
func (w *Writer) tap(p []byte) {
	if n := maxProblem - len(w.tapped); n > 0 && isProblem(w.final()) {
		w.tapped = append(w.tapped, p[:min(n, len(p))]...)
	}
}

func isProblem(h http.Header) bool {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "application/problem+json")
}
