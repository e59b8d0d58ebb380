// Package idemgin makes Gin handlers safe to retry.
//
//	r.POST("/v1/payments", authenticate, idemgin.Middleware(engine, idem.Policy{Scope: merchant}), pay)
//
// A request carries a key in its Idempotency-Key header. The first request
// with a key runs the handlers behind the middleware; every repeat gets the
// stored status, body and headers, marked "Idempotent-Replayed: true". What is
// guaranteed, and what is not, says package [idem]. What is stored, what a
// refusal looks like, and what happens to responses that are flushed, hijacked
// or too long is the same for every HTTP adapter of this module.
//
// # Where it goes
//
// Authentication, authorisation and validation run before it, for replays too.
// A validation that binds the body has to put it back: c.ShouldBindBodyWith
// leaves c.Request.Body consumed. What compresses responses goes outside.
// gin.Recovery works on either side: outside, a panic is settled as an outcome
// in doubt and repeats get 500; inside, repeats get what it answered.
//
// Middleware that renders c.Errors goes inside, behind this one: what it writes
// is the outcome. Where the handlers report an error and write nothing, that
// counts as status 500, so as an outcome in doubt, unless they set a status
// above 399. A renderer outside may then still write the live response, but a
// repeat does not get that.
//
// # Where a key stands
//
// [StatusHandler] tells the owner of a key its state, attempt, since when, and
// whether a resolver settles an attempt that was interrupted.
//
// # The handlers
//
// c.Request.Context() is the execution's: it does not end when the client goes
// away, and [idem.FromContext], [idem.CheckOwner] and [idem.DownstreamKey] work
// with it. They work with c itself where [gin.Engine].ContextWithFallback is
// set. [idem.Policy].Scope is given a context in which Value also finds what
// c.Set has stored.
package idemgin
