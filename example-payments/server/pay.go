package server

import (
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// pay is the handler behind the idempotency middleware, for both kinds of key.
func (s *Server) pay(c *gin.Context) {
	ctx := c.Request.Context()
	if x, ok := idem.FromContext(ctx); ok {
		c.Set(operationKey, x.OperationID)
	}
	p, err := s.cfg.Service.Pay(ctx, merchantOf(c), orderOf(ctx))
	if err != nil {
		s.fail(c, err)
		return
	}
	r, err := Answer(p)
	if err != nil {
		s.fail(c, err)
		return
	}
	maps.Copy(c.Writer.Header(), r.Header)
	c.Status(r.Status)
	_, _ = c.Writer.Write(r.Body) // a client that has gone is answered when it asks again
}

// Answer is the answer to a payment that was made. Handler and resolver both
// send it: byte for byte the same for the same payment.
func Answer(p payments.Payment) (idem.Response, error) {
	body, err := json.Marshal(p)
	return idem.Response{
		Status: http.StatusCreated,
		Header: map[string][]string{
			"Content-Type": {"application/json"},
			"Location":     {"/v1/payments/" + p.ID},
		},
		Body: body,
	}, err
}

// operationKey is under what name pay leaves the operation ID for answered.
const operationKey = "operation"

// answered says at debug level that the client has its answer; see
// [payments.Service] for the steps before. A replay has no op.
func (s *Server) answered(c *gin.Context) {
	c.Next()
	s.cfg.Log.LogAttrs(c.Request.Context(), slog.LevelDebug, "payment", slog.String("at", "answered"),
		slog.String("op", c.GetString(operationKey)), slog.Int("status", c.Writer.Status()), slog.String("payment", c.Writer.Header().Get("Location")))
}
