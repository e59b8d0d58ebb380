package httpexchange

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

// This file is about handlers that answer with a refusal: of a service that they
// have called, or of middleware inside. A refusal says nothing about the outcome
// of this handler's operation, whatever its status.

var errRelayed = errors.New("the handler answered with a refusal")

// relayed is the handler's error: its outcome is in doubt, and its answer is not
// kept.
func relayed(code idem.Code) error { return fmt.Errorf("%w: %s", errRelayed, code) }

// isRelayed reports whether the engine has given the handler's error back. A
// refusal that has it as its cause is the engine's own.
func isRelayed(err error) bool {
	_, refused := errors.AsType[*idem.Refusal](err)
	return !refused && errors.Is(err, errRelayed)
}

// maxProblem is how much of a problem is looked at, in bytes. Refusals are
// shorter.
const maxProblem = 64 << 10

// unseen stands for the code of a problem that cannot be read here. It may be a
// refusal, so that it counts as one.
const unseen idem.Code = "a problem that cannot be read"

// relayed returns the code of the refusal that the handler has answered with, or
// "".
func (c *Capture) relayed() idem.Code {
	if c.unseen {
		return unseen
	}
	if c.hijacked || !isProblem(c.final()) {
		return ""
	}
	body := c.body
	if c.streamed {
		body = c.tapped
	}
	var r io.Reader = bytes.NewReader(body)
	switch encoding := strings.ToLower(strings.Join(c.final()["Content-Encoding"], ", ")); encoding {
	case "", "identity":
	case "gzip", "x-gzip":
		z, err := gzip.NewReader(r)
		if err != nil {
			return ""
		}
		r = z
	default:
		return unseen
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
func (c *Capture) tap(p []byte) {
	if n := maxProblem - len(c.tapped); n > 0 && isProblem(c.final()) {
		c.tapped = append(c.tapped, p[:min(n, len(p))]...)
	}
}

func isProblem(h http.Header) bool {
	mediaType, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), "application/problem+json")
}
