package server

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// Codes of the server, beside those of the domain and of the engine.
const (
	codeUnauthorized     = "unauthorized"
	codeNotFound         = "not-found"
	codeMethodNotAllowed = "method-not-allowed"
	codeQueryInvalid     = "query-invalid"
	codeInternal         = "internal"
)

// kind is one row of the table of problems.
type kind struct {
	status int
	title  string
}

// kinds maps codes to statuses. Codes that are not here are the engine's; see
// kindOf.
var kinds = map[string]kind{
	string(payments.CodeBodyInvalid):       {http.StatusBadRequest, "Request body is invalid"},
	string(payments.CodeCurrencyMismatch):  {http.StatusBadRequest, "Account has another currency"},
	string(payments.CodeInsufficientFunds): {http.StatusPaymentRequired, "Insufficient funds"},
	string(payments.CodeAccountUnknown):    {http.StatusNotFound, "Account is unknown"},
	string(payments.CodePaymentUnknown):    {http.StatusNotFound, "Payment is unknown"},
	codeUnauthorized:                       {http.StatusUnauthorized, "API key is missing or unknown"},
	codeNotFound:                           {http.StatusNotFound, "There is nothing here"},
	codeQueryInvalid:                       {http.StatusBadRequest, "Query is invalid"},
	codeInternal:                           {http.StatusInternalServerError, "Internal error"},
	codeMethodNotAllowed:                   {http.StatusMethodNotAllowed, "Method is not allowed here"},
}

func kindOf(code string) kind {
	if k, ok := kinds[code]; ok {
		return k
	}
	return kind{idem.Code(code).HTTPStatus(), idem.Code(code).Title()}
}

// problem is an answer in application/problem+json (RFC 9457), as the
// middleware's are. Codes that have to do with keys have a type.
type problem struct {
	Type   string `json:"type,omitempty"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   string `json:"code"`
}

// abort answers with a problem and ends the chain.
func abort(c *gin.Context, code, detail string) {
	k := kindOf(code)
	if k.status == http.StatusServiceUnavailable {
		c.Header("Retry-After", "1")
	}
	p := problem{Title: k.title, Status: k.status, Detail: detail, Code: code}
	if documented(code) {
		p.Type = documentation + "#" + code
		c.Writer.Header().Add("Link", "<"+p.Type+`>; rel="describedby"; type="text/html"`)
	}
	body, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	c.Abort()
	c.Data(k.status, "application/problem+json", body)
}

// fail answers with what an error means to the client. What it does not mean
// to the client is logged here and answered in the engine's words.
func (s *Server) fail(c *gin.Context, err error) {
	if domain, ok := errors.AsType[*payments.Error](err); ok {
		abort(c, string(domain.Code), domain.Detail)
		return
	}
	code := payments.CodeOf(err)
	s.cfg.Log.LogAttrs(c.Request.Context(), slog.LevelWarn, "request failed",
		slog.String("route", c.FullPath()), slog.String("code", string(code)), slog.Any("err", err))
	abort(c, string(code), code.Detail())
}
