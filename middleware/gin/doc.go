// Package idemgin makes Gin handlers safe to retry.
//
//	r.POST("/v1/payments", authenticate, idemgin.Middleware(engine, idem.Policy{Scope: merchant}), pay)
//
// A request carries a key in its Idempotency-Key header. The first request
// with a key runs the handlers behind the middleware; every repeat gets the
// stored status, body and headers, marked "Idempotent-Replayed: true". What is
// guaranteed, and what is not, says package [idem]. What is stored, what a
// refusal looks like, and what happens to responses that are flushed, hijacked
// or too long is the same for every HTTP adapter of this module; see the comment
// of middleware/http.
//
// Safe methods (GET, HEAD, OPTIONS, TRACE) need no key and go straight to the
// handlers, so r.Use(middleware) is fine. [WithMethods] and [WithOptionalKey]
// choose otherwise. Neither the host nor request headers are part of what makes two
// requests the same, unless [WithComparedHeaders] names them.
//
// # Where it goes
//
// Authentication, authorisation and validation run before it, for replays too.
// A validation that binds the body has to put it back: c.ShouldBindBodyWith
// leaves c.Request.Body consumed. What compresses responses goes outside.
// gin.Recovery works on either side, and a panic is an outcome in doubt: outside,
// repeats get 500; inside, they get what it answered. What a handler had written
// before is dropped, since a status above 499 starts a response over that was begun.
// A recovery of your own has to answer with such a status. Where a part of the
// response has been sent the connection is broken off.
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
// c.Request.Context() is the execution's. It ends at the deadline or with the
// lock, and not when the client goes away. [idem.FromContext], [idem.CheckOwner]
// and [idem.DownstreamKey] work with it and with c itself, and so do the client
// transports of this module. c does not end with the execution, unless
// [gin.Engine].ContextWithFallback is set: give c.Request.Context() to whatever
// waits.
//
// Do not use c in a goroutine that may outlive the handler. Gin recycles it, and
// it then belongs to another request and its execution. Take c.Request.Context()
// or c.Copy() before the goroutine starts: with either the gate is closed once the
// handler has returned ([idem.ErrExecutionEnded]). So a handler has to wait for
// its goroutines. Middleware that answers while the handler still runs, as a
// time-out does, has no place inside: set [idem.Policy].HandlerTimeout, which ends the
// handler's context and waits for the handler, or put the time-out outside.
//
// [gin.Engine.HandleContext] puts Gin's own writer back into c and forgets what
// c.Set has stored. The response then reaches the client past the middleware, and is
// treated as one that was streamed: repeats get result-unavailable, or
// outcome-unknown where its status says failure. From there on c does not know the
// execution unless ContextWithFallback is set. c.Request.Context() does.
//
// [idem.Policy].Scope is given a context in which Value also finds what
// c.Set has stored.
package idemgin
