// Package idemhttp makes net/http handlers safe to retry.
//
//	protect := idemhttp.Middleware(engine, idem.Policy{Scope: merchant})
//	mux.Handle("POST /v1/payments", authenticate(validate(protect(handler))))
//
// A request carries a key in its Idempotency-Key header. The first request
// with a key runs the handler; every repeat gets the stored status, body and
// headers, marked "Idempotent-Replayed: true". What is guaranteed, and what is
// not, says package [idem]. Refusals are problem+json (RFC 9457) with a stable
// "code"; their statuses are those of [idem.Code]. [WithDocumentation] has them
// point to a page for clients, and [WithRefusals] puts them into another format:
// examples/stripe has that of Stripe's API.
//
// # Which requests
//
// Safe methods (GET, HEAD, OPTIONS, TRACE) need no key and go straight to the
// handler, so the middleware can be put around a whole mux; [WithMethods] chooses
// other methods. Every other request needs a key, unless the route has
// [WithOptionalKey]: then one without a key runs unprotected, and is reported
// as [idem.EventUnprotected].
//
// # Where it goes
//
// Authentication and authorisation run before it, since they have to run for
// replays too, and leave in the request's context whose key it is, for
// [idem.Policy].Scope. Validation runs before it as well, so that a request
// which is refused leaves no record; it has to put the body back. What
// compresses responses or sets cookies goes outside, too: replays pass through
// it. Whatever turns the handler's errors into responses goes inside: what it
// makes of them is the outcome.
//
// # The handler
//
// It runs in the server's goroutine with a context that does not end when the
// client goes away; [idem.FromContext], [idem.CheckOwner] and
// [idem.DownstreamKey] work with it. When the handler returns, its execution is
// over: what it has left running is refused by CheckOwner, by DownstreamKey and by
// a [Transport] ([idem.ErrExecutionEnded]).
//
// [http.TimeoutHandler] does not belong inside. It returns while the handler still
// runs, the lock is given back, and a second execution may run beside the first.
// Set [idem.Policy].HandlerTimeout instead: it ends the handler's context, and the
// outcome is settled when the handler has returned. Outside, http.TimeoutHandler
// only answers the client early.
//
// The body has been read, up to
// [idem.Policy].MaxRequestBody, and is there to be read again.
//
// Its response is kept in memory and sent once the outcome has been settled,
// with all of its headers. Stored are the status, the body, and Content-Type,
// Content-Language, Content-Encoding, Content-Disposition, Location and ETag,
// where the handler set them; [WithReplayHeaders] adds to these. Cookies,
// credentials, dates and trailers are never stored.
//
// A handler that flushes, hijacks the connection, or writes more than
// [idem.Policy].MaxResponseBody is served as without this package, except that
// its response is not stored: repeats are refused as result-unavailable. When
// the outcome of a streamed response cannot be settled, the connection is
// broken off. [net/http/httputil.ReverseProxy] flushes responses that are event
// streams or of unknown length. Informational responses (103 Early Hints) go out
// at once and are not stored. A panic is settled as an outcome in doubt and then
// goes on. In doubt is also one that is recovered inside and answered with a status above 499: such a status
// starts a response over that was begun, or breaks off one that was sent in part.
//
// A handler that answers with a refusal of this module, problem+json with a code of
// [idem.Code], has relayed it from a service that it called. That leaves its own
// outcome in doubt, and the answer is not stored. Give problems of your own other
// codes.
//
// Middleware that is met twice, or by a request that a handler makes within the
// process, executes once: the inner one passes the request through. It has to have
// the same policy. Another key is an execution of its own.
//
// A client that does not read blocks the writes of such a response, and with them
// the handler, which holds the key. Set [idem.Policy].HandlerTimeout on routes that
// stream: a second after it the writes fail. What wraps the response outside needs
// an Unwrap method for that, as for [http.ResponseController].
//
// # When two requests are the same
//
// Two requests with one key are the same when their method, path, query, media
// type, content encoding and body are; bodies in JSON and of forms are compared by
// value. See [idem.RequestFingerprint]. Neither the host nor any other header is
// compared: a service that does something else for another Host, or for another
// header, names these with [WithComparedHeaders], or makes them part of the scope.
//
// A body that the client did not announce the length of (chunked, or HTTP/2), and
// that something in front has read without putting it back, cannot be told from
// an empty one. Of any other body this is noticed, and refused as internal.
//
// # Where a key stands
//
// [StatusHandler] tells the owner of a key its state, attempt, since when, and,
// of an attempt that is open, whether somebody but a person settles it where it
// was interrupted ("resolver"). In "none", "issued" and "released" a request
// with the key runs; "unknown" without a resolver waits for an operator.
//
// # Clients
//
// [NewTransport] is the calling side: an [net/http.RoundTripper] that gives each
// logical call one key, retries what is safe to retry, and inside a protected
// handler derives the key from the operation.
package idemhttp
