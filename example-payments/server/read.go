package server

import (
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
)

func (s *Server) getPayment(c *gin.Context) {
	p, err := s.cfg.Ledger.Payment(c.Request.Context(), merchantOf(c), c.Param("id"))
	s.answer(c, p, err)
}

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
