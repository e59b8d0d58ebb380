package exchange

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// This file is about handlers that answer with a refusal by a called service, or by
// middleware inside. The refusal has no information about the outcome of this handler's
// operation. So the status does not count, and the outcome is in doubt.

// maxProblem is how much of a problem is read, in bytes. Refusals are shorter.
const maxProblem = 64 << 10

// unreadable is the code of a problem that was not kept, or is in an unknown encoding. It
// counts as a refusal, because it may be one.
const unreadable idem.Code = "a problem that cannot be read"

// relayed returns the code of the refusal in the handler's answer, or "".
func (w *Writer) relayed() idem.Code {
	switch {
	case !isProblem(w.final()):
		return ""
	case w.elsewhere, w.streamed && !w.hijacked:
		return unreadable
	}
	var r io.Reader = bytes.NewReader(w.body) // empty after a hijack
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

func isProblem(h http.Header) bool {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "application/problem+json")
}
