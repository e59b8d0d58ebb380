package server

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// Codes of the server. The domain and the engine have codes of their own.
const (
	codeUnauthorized     = "unauthorized"
	codeNotFound         = "not-found"
	codeMethodNotAllowed = "method-not-allowed"
	codeQueryInvalid     = "query-invalid"
	codeTooManyStreams   = "too-many-streams"
	codeInternal         = "internal"
)

type kind struct {
	status int
	title  string
}

// kinds maps the sample's codes to statuses. All other codes belong to the engine.
var kinds = map[string]kind{
	string(payments.CodeBodyInvalid):       {http.StatusBadRequest, "Request body is invalid"},
	string(payments.CodeCurrencyMismatch):  {http.StatusBadRequest, "Account has another currency"},
	string(payments.CodeInsufficientFunds): {http.StatusPaymentRequired, "Insufficient funds"},
	string(payments.CodeAccountUnknown):    {http.StatusNotFound, "Account is unknown"},
	string(payments.CodePaymentUnknown):    {http.StatusNotFound, "Payment is unknown"},
	string(payments.CodeLedgerUnavailable): {http.StatusServiceUnavailable, "Ledger is unavailable"},
	codeUnauthorized:                       {http.StatusUnauthorized, "API key is missing or unknown"},
	codeNotFound:                           {http.StatusNotFound, "There is nothing here"},
	codeQueryInvalid:                       {http.StatusBadRequest, "Query is invalid"},
	codeTooManyStreams:                     {http.StatusTooManyRequests, "Too many timelines are open"},
	codeInternal:                           {http.StatusInternalServerError, "Internal error"},
	codeMethodNotAllowed:                   {http.StatusMethodNotAllowed, "Method is not allowed here"},
}

func kindOf(code string) kind {
	if k, ok := kinds[code]; ok {
		return k
	}
	return kind{idem.Code(code).HTTPStatus(), idem.Code(code).Title()}
}

// problem is an answer in application/problem+json (RFC 9457), as in the middleware.
// The codes about keys have a type.
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
	if slices.Contains([]int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusRequestTimeout}, k.status) {
		c.Header("Retry-After", "1")
	}
	p := problem{Title: k.title, Status: k.status, Detail: detail, Code: code}
	if slices.Contains(describedCodes, idem.Code(code)) {
		p.Type = documentation + "#" + code
		c.Writer.Header().Add("Link", "<"+p.Type+`>; rel="describedby"; type="text/html"`)
	}
	body, _ := json.Marshal(p) //nolint:errchkjson // strings and numbers always marshal
	c.Abort()
	c.Data(k.status, "application/problem+json", body)
}

// fail answers with a domain error as it is. All other errors are logged here, and
// the client gets the code of [payments.CodeOf].
func (s *Server) fail(c *gin.Context, err error) {
	if domain, ok := errors.AsType[*payments.Error](err); ok {
		abort(c, string(domain.Code), domain.Detail)
		return
	}
	code, detail := payments.CodeOf(c.Request.Context(), err)
	s.cfg.Log.LogAttrs(c.Request.Context(), slog.LevelWarn, "request failed",
		slog.String("route", c.FullPath()), slog.String("code", string(code)), slog.Any("err", err))
	abort(c, string(code), detail)
}

// documentation is the page about keys. Refusals point to it. Its fragments are the
// codes.
const documentation = "/docs/idempotency"

// describedCodes are the codes about keys, in the order of the page.
var describedCodes = []idem.Code{
	idem.CodeKeyMissing, idem.CodeKeyInvalid, idem.CodeBodyInvalid, idem.CodeBodyTooLarge, idem.CodeBodyIncomplete, idem.CodeTokenUnknown, idem.CodeInProgress,
	idem.CodeTooManyOpen, idem.CodeKeyReused, idem.CodeOutcomeUnknown, idem.CodeKeyExpired, idem.CodeResultUnavailable,
	idem.CodeOwnershipLost, idem.CodeUnavailable, idem.CodeStoreLost,
}
