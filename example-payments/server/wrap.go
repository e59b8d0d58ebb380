package server

import (
	"errors"
	"log/slog"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/gin-gonic/gin"
)

// routeOf names the route for metrics: a pattern, never a path that a client
// made up.
func routeOf(c *gin.Context) string {
	if p := c.FullPath(); p != "" {
		return c.Request.Method + " " + p
	}
	return "none"
}

func (s *Server) measure(c *gin.Context) {
	start := time.Now()
	defer func() { s.cfg.Metrics.request(routeOf(c), c.Writer.Status(), time.Since(start)) }()
	c.Next()
}

// recover answers for a handler that panicked, whose attempt the engine has
// settled as in doubt by then.
func (s *Server) recover(c *gin.Context) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if err, ok := r.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(r) // the server cuts the connection
		}
		s.cfg.Log.LogAttrs(c.Request.Context(), slog.LevelError, "panic", slog.String("route", routeOf(c)),
			slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		if c.Writer.Written() {
			panic(http.ErrAbortHandler) // rather than half an answer
		}
		abort(c, codeInternal, "The outcome is not known; send the request again with the same key.")
	}()
	c.Next()
}
