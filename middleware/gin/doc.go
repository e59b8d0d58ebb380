// Package idemgin makes Gin handlers safe to retry.
//
//	r.POST("/v1/payments", authenticate, idemgin.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}), pay)
//
// A request carries a key in its Idempotency-Key header. The first request with a key
// runs the handlers after the middleware. Every repeat gets the stored status, body and
// headers, marked "Idempotent-Replayed: true". Package [idem] says what is guaranteed.
// All HTTP adapters of this module store the same, refuse in the same format, and treat
// responses that are flushed, hijacked or too long in the same way. Package
// middleware/http describes that.
//
// Safe methods (GET, HEAD, OPTIONS, TRACE, QUERY) need no key and go straight to the handlers,
// so r.Use(middleware) is fine. Methods and OptionalKey of [exchange.Config] choose otherwise. The
// host and the headers are not compared, unless its Compare names them.
//
// # Where it goes
//
// Authentication, authorisation and validation run before the middleware, for replays
// too. A validation binds the body with c.ShouldBindBodyWithJSON, or another of the
// c.ShouldBindBodyWith functions. Gin keeps the body then, and this middleware puts it back. After
// c.ShouldBindJSON the body is gone, and the request is refused as internal. A handler that
// validates by itself calls [idem.NoEffect] before it answers 400. Otherwise that answer is the
// outcome, and the corrected request needs a new key. Middleware that decompresses requests,
// compresses responses or answers to origins (CORS) goes outside. A 404 or 405 of a request without a
// route is not stored.
//
// gin.Recovery works on either side, and a panic is an outcome in doubt. Repeats
// get outcome-unknown. What a handler had written
// before is dropped, because a status above 499 starts a response over that was begun. A
// recovery of your own has to answer with such a status. If a part of the response has
// been sent, the connection is broken off, also behind a recovery outside. Gin alone would send
// the first status. So an audit log that fails after c.JSON(201) and calls c.AbortWithStatus(500)
// changes the outcome: it is in doubt, or rolled back in joined mode. Let such middleware report
// its error without a status.
//
// Middleware that renders c.Errors goes inside, because its response is the outcome. If
// the handlers report an error and write nothing, that counts as status 500, and so as an
// outcome in doubt, unless they set a status above 399. A renderer outside may then still
// write the live response, but a repeat does not get it.
//
// # Where a key stands
//
// [StatusHandler] tells the owner of a key its state, attempt and time, and whether a
// resolver settles an interrupted attempt.
//
// # The handlers
//
// c.Request.Context() is the execution's. It ends at the deadline or with the lock, and
// not when the client goes away. [idem.FromContext], [idem.CheckOwner] and
// [idem.DownstreamKey] work with it and with c itself, and so do the client transports of
// this module. c does not end with the execution, unless [gin.Engine].ContextWithFallback
// is set. So give c.Request.Context() to calls that wait, and to database/sql. That watches the
// context of a statement in a goroutine, which may still read c when Gin, or this middleware, sets
// c.Request again. The race detector reports it, in a Gin service without this middleware too.
//
// Do not use c in a goroutine that may outlive the handler. Gin recycles c, and it then
// belongs to another request and its execution. Take c.Request.Context() or c.Copy() before
// the goroutine starts. With either the gate is closed once the handler has returned
// ([idem.ErrExecutionEnded]). So a handler has to wait for its goroutines. Middleware that
// answers while the handler still runs, as a time-out does, has no place inside. Nor has it a
// place outside if it runs the chain in a goroutine on the same gin.Context, as
// gin-contrib/timeout does. If the chain runs in a goroutine in front, or gin-contrib/timeout
// is on either side, requests are refused as internal and nothing runs. Other time-outs cannot
// be seen before. If one answers with a refusal through a writer of its own, or from a
// goroutine of its own, the outcome is in doubt, with the event misused. What answers in the
// goroutine of the request while the handler runs in another one is not noticed. With a status
// such as 429 a repeat then runs the handler again beside it. Set
// [idem.Policy].HandlerTimeout, which ends the handler's context and waits for the handler, or
// wrap the whole router with [net/http.TimeoutHandler], which has a writer to itself.
//
// [gin.Engine.HandleContext] puts Gin's own writer back into c and forgets the values of
// c.Set. While the handlers run, Gin's own writer therefore writes to the response that this
// middleware keeps, and the outcome and the replay are those of the target. Such a response is never
// sent as a stream, and is kept up to [idem.Policy].MaxResponseHeld bytes. From there on c does not know the
// execution unless ContextWithFallback is set or the target has this middleware too.
// c.Request.Context() does. Such a handler does not run again after a conflict.
//
// In the context of [idem.Policy].Scope, and of the requests that the functions of
// [exchange.Config] get, Value also finds the values of c.Set, and the gin.Context itself under
// [gin.ContextKey]. Refuse has no gin.Context there, because it answers by its writer alone.
//
// # Running again after a conflict
//
// [idem.WithConflictRetries] runs the handler again if this middleware is right in front of it,
// because Gin cannot run a chain twice. With other handlers in between the client gets the answer
// of the first run, or unavailable, and retries.
package idemgin
