package server

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// healthz says that the process answers.
func (s *Server) healthz(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"status": "ok"}) }

// readyz says whether a payment with a fresh key would be served now.
func (s *Server) readyz(c *gin.Context) {
	ctx := c.Request.Context()
	if err := payments.Ready(ctx, s.cfg.Engine, s.cfg.Ledger); err != nil {
		s.unready.Store(true)
		s.cfg.Log.WarnContext(ctx, "not ready", "err", err)
		abort(c, string(idem.CodeUnavailable), "Lock, token store or ledger cannot be reached.")
		return
	}
	if s.unready.CompareAndSwap(true, false) {
		s.cfg.Log.InfoContext(ctx, "ready again")
	}
	c.JSON(http.StatusOK, gin.H{"status": "ready"})
}
