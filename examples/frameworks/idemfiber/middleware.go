// Package idemfiber makes Fiber handlers safe to retry. It is an example to copy, an
// adapter on package exchange for a framework without net/http.
//
//	protect, err := idemfiber.New(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
//	app.Post("/v1/payments", authenticate, protect, pay)
//
// Authentication and validation run before it, and so does Fiber's recover. The error
// handler's answer to a handler's error is the outcome. A handler gives c.Context()
// to [idem.CheckOwner] and [idem.DownstreamKey].
//
// Fiber's timeout middleware runs the handler in a goroutine and answers without it. It has no
// place around this middleware, nor inside. If it answers, the outcome is in doubt, with the event
// misused. Set Policy.HandlerTimeout.
//
// Nothing can be written to the connection while the handlers run. So c.End and c.SendEarlyHints
// return an error, because they would send a success before its outcome is settled.
//
// Fiber keeps a response until the handler has returned. So a response over the limit of
// the policy is not stored, and can still be replaced. A body stream is written after
// the handler, and outside of its execution. Repeats get result-unavailable.
package idemfiber

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"runtime"
	"strings"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/valyala/fasthttp"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

// ContextKey is the key of the [fiber.Ctx] in the context of Policy.Scope, and of the requests that the functions of
// [exchange.Config] get.
type ContextKey struct{}

// New returns middleware that protects the handlers after it. cfg may be left out. The error says
// what is wrong with the wiring.
func New(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) (fiber.Handler, error) {
	route, err := exchange.New(engine, policy, cfg...)
	if err != nil {
		return nil, fmt.Errorf("idemfiber: %w", err)
	}
	var protect fiber.Handler
	protect = func(c fiber.Ctx) error {
		call, err := describe(c)
		if err != nil {
			return err
		}
		ctx, mounted := c.Context(), c.Route()
		defer c.SetContext(ctx)
		call.Next = func(w *exchange.Writer, r *http.Request) {
			c.SetContext(r.Context())
			answer(c, w, call.Writer)
			if c.Route() == mounted && endsWith(mounted, protect) && isUnrouted(c.Response().StatusCode()) {
				idem.NotAdmitted(r.Context())
			}
		}
		if !route.Serve(call) {
			return c.Next()
		}
		return nil
	}
	return protect, nil
}

// endsWith reports whether nothing of a route comes after h, as with app.Use(h). If Fiber finds no
// other route for a request, the answer is its own 404 or 405. It is no outcome, because a
// deployment may add the route.
func endsWith(route *fiber.Route, h fiber.Handler) bool {
	n := len(route.Handlers)
	return n > 0 && reflect.ValueOf(route.Handlers[n-1]).Pointer() == reflect.ValueOf(h).Pointer()
}

func isUnrouted(status int) bool {
	return status == http.StatusNotFound || status == http.StatusMethodNotAllowed
}

var errAbandoned = errors.New("idemfiber: a time-out has answered, and the handler may still run; set Policy.HandlerTimeout instead")

// answer runs the rest of the chain and moves its response to w. After a panic, outer
// takes back what the handler has written.
func answer(c fiber.Ctx, w *exchange.Writer, outer http.ResponseWriter) {
	returned := false
	defer func() {
		if !returned {
			outer.WriteHeader(http.StatusOK)
		}
	}()
	defer hold(c)()
	if err := c.Next(); err != nil {
		if err = c.App().ErrorHandler(c, err); err != nil {
			_ = c.SendStatus(http.StatusInternalServerError)
		}
	}
	returned = true
	if c.IsAbandoned() {
		w.Doubt(errAbandoned)
		return
	}
	response := c.Response()
	header := headerOf(response)
	if response.IsBodyStream() {
		w.Bypass(response.StatusCode(), header)
		return
	}
	clear(w.Header())
	maps.Copy(w.Header(), header)
	w.WriteHeader(response.StatusCode())
	_, _ = w.Write(response.Body())
}

// hold keeps the handlers from writing to the connection. release ends that.
func hold(c fiber.Ctx) (release func()) {
	conn := c.RequestCtx().Conn()
	until := func(t time.Time) {
		defer func() { _ = recover() }() // a context that was made without a connection
		if conn != nil {
			_ = conn.SetWriteDeadline(t)
		}
	}
	if !served() { // a time-out in front needs the connection for its answer
		return func() {}
	}
	until(time.Unix(1, 0))
	return func() { until(time.Time{}) }
}

var serving = reflect.TypeFor[fasthttp.Server]().PkgPath() + ".(*Server).serveConn"

// served reports whether this is the goroutine of the connection.
func served() bool {
	pcs := make([]uintptr, 128)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	for {
		frame, more := frames.Next()
		if frame.Function == serving {
			return true
		}
		if !more {
			return false
		}
	}
}

// StatusHandler answers GET with the state of the caller's key.
func StatusHandler(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) (fiber.Handler, error) {
	route, err := exchange.NewWithoutHandler(engine, policy, cfg...)
	if err != nil {
		return nil, fmt.Errorf("idemfiber: %w", err)
	}
	return func(c fiber.Ctx) error {
		call, err := describe(c)
		if err == nil {
			route.Status(call)
		}
		return err
	}, nil
}

// describe makes a call of a request. It copies every string, because fasthttp reuses
// its buffers for the next request while an outcome may still be stored.
func describe(c fiber.Ctx) (exchange.Call, error) {
	method := strings.Clone(c.Method())
	uri := string(c.Request().Header.RequestURI())
	r, err := http.NewRequestWithContext(c.Context(), method, uri, bytes.NewReader(c.Request().Body()))
	if err != nil {
		return exchange.Call{}, fiber.ErrBadRequest
	}
	if r.ContentLength == 0 { // a stream of the body may have been read in front
		r.ContentLength = int64(max(c.Request().Header.ContentLength(), -1))
	}
	r.RequestURI, r.Host = uri, string(c.Request().Host())
	for name, value := range c.Request().Header.All() {
		r.Header.Add(string(name), string(value))
	}
	call := exchange.Call{
		Writer:   &writer{response: c.Response(), header: headerOf(c.Response())},
		Buffered: true,
		Request:  r,
		Context:  context.WithValue(r.Context(), ContextKey{}, c),
	}
	if c.FullPath() != "" {
		call.Route = method + " " + c.FullPath()
	}
	return call, nil
}

// writer is an [http.ResponseWriter] that replaces a response of fasthttp.
type writer struct {
	response *fasthttp.Response
	header   http.Header
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	w.response.Reset()
	w.response.SetStatusCode(status)
	for name, values := range w.header {
		for _, v := range values {
			w.response.Header.Add(name, v)
		}
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.response.AppendBody(p)
	return len(p), nil
}

func headerOf(r *fasthttp.Response) http.Header {
	header := http.Header{}
	for name, value := range r.Header.All() {
		header.Add(string(name), string(value))
	}
	return header
}
