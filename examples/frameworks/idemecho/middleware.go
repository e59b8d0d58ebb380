// Package idemecho makes Echo handlers safe to retry. It is an example to copy, an
// adapter on package exchange for a framework on net/http.
//
//	protect, err := idemecho.New(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
//	e.POST("/v1/payments", pay, authenticate, protect)
//
// Authentication and validation run before it, and so does Echo's Recover. A Recover inside
// cannot answer after the response has begun, and half a response would be the outcome. The
// error handler's answer to a handler's error is the outcome. Echo's Timeout has no place around this
// middleware, nor inside, because Echo reuses the echo.Context while the handler still runs, and the
// handler may then write into the response of another request. Around this middleware it is noticed,
// and requests are refused as internal. Inside it is noticed once it has answered, and the outcome is
// in doubt, with the event misused. Set Policy.HandlerTimeout. ContextTimeout may be on either side. Echo takes the first status for
// the final one. So 103 Early Hints do not reach the client, nor does a status after the
// first byte of the response.
package idemecho

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"runtime"

	"github.com/labstack/echo/v4"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

// ContextKey is the key of the [echo.Context] in the context of Policy.Scope, and of the requests that the functions of
// [exchange.Config] get.
type ContextKey struct{}

// New returns middleware that protects the handlers after it. cfg may be left out. The error says
// what is wrong with the wiring.
func New(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) (echo.MiddlewareFunc, error) {
	route, err := exchange.New(engine, policy, cfg...)
	if err != nil {
		return nil, fmt.Errorf("idemecho: %w", err)
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if unrouted(c) {
				return next(c)
			}
			outer, request := c.Response(), c.Request()
			defer func() {
				c.SetResponse(outer)
				c.SetRequest(request)
			}()
			call := describe(c)
			call.Next = func(w *exchange.Writer, r *http.Request) {
				own := writer{w}
				inner := echo.NewResponse(own, c.Echo())
				inner.Status = http.StatusOK
				c.SetResponse(inner)
				c.SetRequest(r)
				if err := next(c); err != nil {
					begun := inner.Committed
					c.Error(err)
					if begun { // the error handler cannot answer any more
						w.WriteHeader(http.StatusInternalServerError)
					}
				}
				if inner.Writer != http.ResponseWriter(own) { // middleware puts it back, unless it left the handler behind
					w.Doubt(errLeft)
				}
			}
			if !route.Serve(call) {
				return next(c)
			}
			return nil
		}
	}, nil
}

var (
	errForked = errors.New("idemecho: middleware in front runs the chain in a goroutine of its own, as Echo's Timeout does, and may answer while the handler runs; set Policy.HandlerTimeout, or use ContextTimeout")
	errLeft   = errors.New("idemecho: middleware behind has not put the writer back, as Echo's Timeout does if it answers while the handler runs; set Policy.HandlerTimeout, or use ContextTimeout")
)

var router = reflect.TypeFor[echo.Echo]().PkgPath() + ".(*Echo).ServeHTTP"

// forked reports whether a chain with a route runs in another goroutine than the router.
func forked(c echo.Context) bool {
	pcs := make([]uintptr, 64)
	for skip := 0; c.Path() != ""; skip += len(pcs) {
		n := runtime.Callers(skip, pcs)
		for frames := runtime.CallersFrames(pcs[:n]); n > 0; {
			frame, more := frames.Next()
			if frame.Function == router {
				return false
			}
			if !more {
				break
			}
		}
		if n < len(pcs) {
			return true
		}
	}
	return false
}

// writer keeps a stream that cannot be sent early. Echo would panic.
type writer struct{ *exchange.Writer }

func (w writer) FlushError() error {
	if err := w.Writer.FlushError(); !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

// unrouted reports whether Echo answers a request itself, with 404 or 405. Such an answer is no
// outcome, because it may be another one after a deployment.
func unrouted(c echo.Context) bool {
	handler := reflect.ValueOf(c.Handler()).Pointer()
	return handler == reflect.ValueOf(echo.NotFoundHandler).Pointer() || handler == reflect.ValueOf(echo.MethodNotAllowedHandler).Pointer()
}

// StatusHandler answers GET with the state of the caller's key.
func StatusHandler(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) (echo.HandlerFunc, error) {
	route, err := exchange.NewWithoutHandler(engine, policy, cfg...)
	if err != nil {
		return nil, fmt.Errorf("idemecho: %w", err)
	}
	return func(c echo.Context) error {
		route.Status(describe(c))
		return nil
	}, nil
}

// describe makes a call of a request.
func describe(c echo.Context) exchange.Call {
	call := exchange.Call{
		Writer:  c.Response(),
		Request: c.Request(),
		Context: context.WithValue(c.Request().Context(), ContextKey{}, c),
	}
	call.Misplaced = func() error {
		if forked(c) {
			return errForked
		}
		return nil
	}
	if path := c.Path(); path != "" {
		call.Route = c.Request().Method + " " + path
	}
	return call
}
