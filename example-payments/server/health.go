package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
)

// readyTimeout bounds a readiness check.
const readyTimeout = 2 * time.Second

// healthz says that the process answers.
func (s *Server) healthz(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"status": "ok"}) }

// readyz says whether a payment with a fresh key would be served now.
func (s *Server) readyz(c *gin.Context) {
	ctx, cancel := context.WithTimeout(c.Request.Context(), readyTimeout)
	defer cancel()
	if err := errors.Join(s.cfg.Engine.Ping(ctx), s.cfg.Ledger.Ping(ctx)); err != nil {
		s.cfg.Log.WarnContext(ctx, "not ready", "err", err)
		abort(c, string(idem.CodeUnavailable), "Lock, token store or ledger cannot be reached.")
		return
	}
	c.JSON(http.StatusOK, gin.H{"status": "ready"})
}
