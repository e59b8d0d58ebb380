package idemgin

import (
	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/httpexchange"
)

// WriteRefusal answers with a refusal as the middleware does by default, and aborts
// the chain: status, Retry-After, and a problem (RFC 9457) with the code. It is for
// handlers that refuse in the same words, and for a [WithRefusals] that changes
// some refusals only. Of the options only [WithDocumentation] counts. Nothing of
// r.Err is sent. A handler that answers so within an execution leaves its outcome
// in doubt, as every handler that answers with a refusal.
func WriteRefusal(c *gin.Context, r *idem.Refusal, opts ...Option) {
	var o options
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	c.Abort()
	httpexchange.WriteRefusal(c.Writer, r, o.Documentation)
}
