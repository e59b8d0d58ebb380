package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"regexp"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

type orderKey struct{}

// readOrder validates the body before the idempotency middleware sees the request.
// It puts the order into the context.
func (s *Server) readOrder(c *gin.Context) {
	body, err := exchange.ReadBody(c.Request, idem.DefaultMaxRequestBody)
	if refusal, refused := errors.AsType[*idem.Refusal](err); refused {
		s.refuse(c, refusal.Code, refusal.Detail())
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
	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), orderKey{}, order))
}

// refuse answers in place of the middleware, and has the engine count the refusal.
func (s *Server) refuse(c *gin.Context, code idem.Code, detail string) {
	s.cfg.Engine.ReportRefused(c.Request.Context(), routeOf(c), idem.NewRefusal(code, nil))
	abort(c, string(code), detail)
}

// operationKey is the name of the operation ID in the Gin context.
const operationKey = "operation"

// pay is the handler inside the idempotency middleware, for both kinds of key.
func (s *Server) pay(c *gin.Context) {
	ctx := c.Request.Context()
	if x, ok := idem.FromContext(ctx); ok {
		c.Set(operationKey, x.OperationID)
	}
	order, _ := ctx.Value(orderKey{}).(payments.Order)
	p, err := s.cfg.Service.Pay(ctx, merchantOf(c), order)
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
	_, _ = c.Writer.Write(r.Body) // a client that is gone gets the answer when it asks again
}

// Answer is the answer to a payment, from the handler and from the resolver. It has
// the same bytes for the same payment.
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

// LedgerResolver is [payments.LedgerResolver] for keys that are used over HTTP only.
func LedgerResolver(l payments.Ledger, private bool) idem.Resolver {
	return payments.LedgerResolver(l, private, func(_ string, p payments.Payment) (idem.Response, error) { return Answer(p) })
}

// logAnswered logs the last step of a payment at debug level. [payments.Service]
// logs the steps before. A replay has no op.
func (s *Server) logAnswered(c *gin.Context) {
	c.Next()
	s.cfg.Log.LogAttrs(c.Request.Context(), slog.LevelDebug, "payment", slog.String("at", "answered"),
		slog.String("op", c.GetString(operationKey)), slog.Int("status", c.Writer.Status()), slog.String("payment", c.Writer.Header().Get("Location")))
}

func (s *Server) getPayment(c *gin.Context) {
	p, err := s.cfg.Ledger.Payment(c.Request.Context(), merchantOf(c), c.Param("id"))
	s.answer(c, p, err)
}

// operationID is the form of [driver.KeyID.OperationID].
var operationID = regexp.MustCompile(`^op_[0-9a-f]{32}$`)

func (s *Server) listPayments(c *gin.Context) {
	q := payments.Query{Limit: payments.DefaultListLimit}
	if v, ok := c.GetQuery("limit"); ok {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > payments.MaxListLimit {
			abort(c, codeQueryInvalid, "limit is not a number from 1 to "+strconv.Itoa(payments.MaxListLimit)+".")
			return
		}
		q.Limit = n
	}
	if note, ok := c.GetQuery("note"); ok {
		q.Note = &note
	}
	if operation, ok := c.GetQuery("operation_id"); ok {
		if !operationID.MatchString(operation) { // an empty list would read as "never charged"
			abort(c, codeQueryInvalid, "operation_id is not op_ and 32 hexadecimal digits.")
			return
		}
		q.Operation = &operation
	}
	list, more, err := payments.List(c.Request.Context(), s.cfg.Ledger, merchantOf(c), q)
	s.answer(c, struct {
		Payments []payments.Payment `json:"payments"`
		HasMore  bool               `json:"has_more"`
	}{list, more}, err)
}

func (s *Server) getAccount(c *gin.Context) {
	a, err := s.cfg.Ledger.Account(c.Request.Context(), merchantOf(c), c.Param("id"))
	s.answer(c, a, err)
}

func (s *Server) listAccounts(c *gin.Context) {
	list, err := s.cfg.Ledger.Accounts(c.Request.Context(), merchantOf(c))
	s.answer(c, struct {
		Accounts []payments.Account `json:"accounts"`
	}{list}, err)
}

func (s *Server) answer(c *gin.Context, v any, err error) {
	if err != nil {
		s.fail(c, err)
		return
	}
	c.Header("Cache-Control", "no-store")
	c.JSON(http.StatusOK, v)
}
