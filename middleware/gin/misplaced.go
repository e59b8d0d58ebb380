package idemgin

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// This file is about middleware that runs the chain in a goroutine and may answer before the
// chain has ended, as time-outs for Gin do. It has no place on either side of this middleware.

var (
	errForked   = errors.New("idemgin: middleware in front runs the chain in a goroutine of its own, as a time-out does, and may answer while the handler runs; set Policy.HandlerTimeout, or wrap the router with http.TimeoutHandler")
	errReplaced = errors.New("idemgin: middleware behind has answered with a refusal through a writer of its own, as a time-out does while the handler runs; set Policy.HandlerTimeout instead")
)

// router is in the stack of a chain that runs in the goroutine of the request.
var router = adapter.CallerOf(reflect.TypeFor[gin.Engine]().PkgPath() + ".(*Engine).")

// forking lists packages whose middleware is known to run the chain in a goroutine. Behind this
// middleware nothing else gives them away.
var forking = []string{"github.com/gin-contrib/timeout.", "github.com/vearne/gin-timeout."}

// misplaced returns an error if the chain of c has such middleware.
func misplaced(c *gin.Context) error {
	names := c.HandlerNames()
	for _, name := range names {
		for _, pkg := range forking {
			if strings.HasPrefix(name, pkg) {
				return fmt.Errorf("idemgin: %s runs the chain in a goroutine and may answer while the handler runs; set Policy.HandlerTimeout, or wrap the router with http.TimeoutHandler", strings.TrimSuffix(pkg, "."))
			}
		}
	}
	if len(names) > 0 && !router.Calls() { // a test may call the middleware without a router
		return errForked
	}
	return nil
}

// answeredAlone reports whether middleware has left a writer behind that keeps a response of its
// own, and the response is a refusal. Such a writer has its own headers, unlike that of a
// compressor. [gin.Engine.HandleContext] leaves Gin's own writer.
func answeredAlone(c *gin.Context, inner *writer) bool {
	left := same(c.Writer.Header())
	return inner.status >= http.StatusBadRequest && left != same(inner.Header()) && left != same(inner.outer.Header())
}

func same(h http.Header) uintptr { return reflect.ValueOf(h).Pointer() }
