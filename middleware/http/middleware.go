package idemhttp

import (
	"fmt"
	"net/http"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/httpexchange"
)

// New returns middleware that protects the handlers it wraps, on every method that
// is not safe; see [WithMethods]. The policy's Name, where it has none, is the pattern of
// [http.ServeMux] that matched, which is there for middleware inside the mux;
// else the method.
//
// The error says what is wrong with the wiring: no engine, no scope, a header
// that cannot be replayed.
func New(engine *idem.Engine, policy idem.Policy, opts ...Option) (func(http.Handler) http.Handler, error) {
	rt, err := newRoute(engine, policy, opts)
	if err != nil {
		return nil, fmt.Errorf("idemhttp: %w", err)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := rt.call(w, r)
			c.Next = func(w *httpexchange.Capture, r *http.Request) { next.ServeHTTP(w, r) }
			if !rt.Serve(c) {
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

// Middleware is [New] for wiring that is known to be right: it panics where
// New returns an error, at start and never later, as [regexp.MustCompile].
func Middleware(engine *idem.Engine, policy idem.Policy, opts ...Option) func(http.Handler) http.Handler {
	mw, err := New(engine, policy, opts...)
	if err != nil {
		panic(err)
	}
	return mw
}
