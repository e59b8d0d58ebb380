package server

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// bodyTimeout bounds how long a client may take to send a body.
const bodyTimeout = 30 * time.Second

type orderKey struct{}

// readOrder validates the body before the idempotency middleware sees the
// request, and leaves the order in the context and the body to be read again.
func (s *Server) readOrder(c *gin.Context) {
	body, err := readBody(c)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		s.refuse(c, idem.CodeBodyTooLarge, idem.CodeBodyTooLarge.Detail())
		return
	}
	if err != nil {
		s.refuse(c, idem.CodeBodyInvalid, "The request body could not be read.")
		return
	}
	order, err := payments.ParseOrder(body)
	if err != nil {
		detail := idem.CodeBodyInvalid.Detail()
		if why, ok := errors.AsType[*payments.Error](err); ok {
			detail = why.Detail
		}
		s.refuse(c, idem.CodeBodyInvalid, detail)
		return
	}
	c.Request.Body = io.NopCloser(bytes.NewReader(body))
	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), orderKey{}, order))
}

// refuse counts and answers what the middleware is not asked about.
func (s *Server) refuse(c *gin.Context, code idem.Code, detail string) {
	s.cfg.Engine.Refused(c.Request.Context(), routeOf(c), idem.Refuse(code, nil))
	abort(c, string(code), detail)
}

// readBody reads the body up to the limit, within bodyTimeout. The connection's
// deadline is lifted again: it would cancel the request while it runs.
func readBody(c *gin.Context) ([]byte, error) {
	rc := http.NewResponseController(c.Writer)
	if rc.SetReadDeadline(time.Now().Add(bodyTimeout)) == nil { // else a recorder
		defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	}
	return io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, idem.DefaultMaxRequestBody))
}

func orderOf(ctx context.Context) payments.Order {
	o, _ := ctx.Value(orderKey{}).(payments.Order)
	return o
}
