package server

import (
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
)

// Bounds of a list.
const (
	defaultListLimit = 1_000
	maxListLimit     = 10_000
)

func (s *Server) getPayment(c *gin.Context) {
	p, err := s.cfg.Ledger.Payment(c.Request.Context(), merchantOf(c), c.Param("id"))
	s.answer(c, p, err)
}

func (s *Server) listPayments(c *gin.Context) {
	limit := defaultListLimit
	if v, ok := c.GetQuery("limit"); ok {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > maxListLimit {
			abort(c, codeQueryInvalid, "limit is not a number from 1 to "+strconv.Itoa(maxListLimit)+".")
			return
		}
		limit = n
	}
	q := payments.Query{Limit: limit + 1}
	if note, ok := c.GetQuery("note"); ok {
		q.Note = &note
	}
	list, err := s.cfg.Ledger.Payments(c.Request.Context(), merchantOf(c), q)
	more := len(list) > limit
	if more {
		list = list[:limit]
	}
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
