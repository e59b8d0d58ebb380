package idemhttp

import (
	"net/http"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/httpexchange"
)

// WriteRefusal answers with a refusal as the middleware does by default: status,
// Retry-After, and a problem (RFC 9457) with the code. It is for handlers and other
// middleware that refuse in the same words, and for a [WithRefusals] that changes
// some refusals only. Of the options only [WithDocumentation] counts. Nothing of
// r.Err is sent. A handler that answers so within an execution leaves its outcome
// in doubt, as every handler that answers with a refusal.
func WriteRefusal(w http.ResponseWriter, r *idem.Refusal, opts ...Option) {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	httpexchange.WriteRefusal(w, r, o.Documentation)
}

// refusalWriter is what a format of the application writes to: the status is the
// refusal's unless another one is set. It cannot be flushed, which would answer 200
// before anything is written.
type refusalWriter struct {
	http.ResponseWriter
	status  int
	written bool
}

func (w *refusalWriter) WriteHeader(status int) {
	w.written = w.written || status >= 200
	w.ResponseWriter.WriteHeader(status)
}

func (w *refusalWriter) Write(p []byte) (int, error) {
	if !w.written {
		w.WriteHeader(w.status)
	}
	return w.ResponseWriter.Write(p)
}
