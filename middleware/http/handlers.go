package idemhttp

import (
	"fmt"
	"net/http"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// StatusHandler answers GET with where the key in the request's
// Idempotency-Key header stands, for its owner:
//
//	{"state":"completed","operation_id":"op_…","kind":"client-key","attempt":1,"since":"…","expires_at":"…"}
//
// Of a key of which nothing is known, another caller's included, it says
// {"state":"none"}. While the attempt is pending or unknown there is "resolver":
// true where it is settled without a person, should it have been interrupted.
//
// Of the policy only Scope and Doubt count, the latter for every route where it
// has no Name, and else for the route of its Name. See [WithStatusPolicy] for
// routes that treat doubt in another way. It panics on a wiring error, as
// [Middleware].
func StatusHandler(engine *idem.Engine, policy idem.Policy, opts ...Option) http.Handler {
	rt := mustRoute(engine, policy, opts)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.Status(rt.call(w, r)) })
}

// TokenHandler answers POST with 201 and a new one-time token for the caller:
//
//	{"token":"…","expires_at":"2026-01-02T15:04:05Z"}
//
// Of the policy only the scope counts; it has to be that of the route which
// takes the tokens. ttl 0 means [idem.DefaultTokenTTL]. It panics on a wiring
// error, as [Middleware].
func TokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, opts ...Option) http.Handler {
	rt := mustRoute(engine, policy, opts)
	if ttl < 0 {
		panic(fmt.Errorf("idemhttp: tokens for %v", ttl))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.IssueToken(rt.call(w, r), ttl) })
}

func mustRoute(engine *idem.Engine, policy idem.Policy, opts []Option) *route {
	rt, err := newRoute(engine, policy, opts)
	if err != nil {
		panic(fmt.Errorf("idemhttp: %w", err))
	}
	return rt
}
