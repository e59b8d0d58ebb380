// Package idemhttp makes net/http handlers safe to retry.
//
//	protect := idemhttp.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
//	mux.Handle("POST /v1/payments", authenticate(validate(protect(handler))))
//
// A request carries a key in its Idempotency-Key header. The first request with a key
// runs the handler. Every repeat gets the stored status, body and headers, marked
// "Idempotent-Replayed: true". Package [idem] says what is guaranteed. Refusals are
// problem+json (RFC 9457) with a stable "code". [idem.Code] lists their statuses.
// Documentation of [exchange.Config] points them to a page for clients, and Refuse puts them
// into another format. examples/stripe has the format of Stripe's API.
//
// # Which requests
//
// Safe methods (GET, HEAD, OPTIONS, TRACE, QUERY) need no key and go straight to the handler, so
// the middleware can be put right around a whole mux. What the mux then answers by itself, such as
// 404, is not stored. With middleware in between, a mux within the mux or another router, a 404 cannot
// be told from that of a handler and is stored like any outcome. Wrap the routes there.
// Methods of [exchange.Config] chooses other methods.
// Every other request needs a key, unless the route has OptionalKey. Then nothing protects a request
// without a key from its repeats, and it is reported as [telemetry.EventUnprotected].
//
// # Where it goes
//
// Authentication and authorisation run before the middleware, because they have to run
// for replays too. They leave the owner of the key in the request's context, for
// [idem.Policy].Scope. Validation runs before it as well, so that an invalid request
// leaves no record. Validation has to put the body back, and [exchange.ReadBody] does both.
// Middleware that compresses responses, sets cookies or answers to origins (CORS) also goes outside,
// and replays pass through it, and so does middleware that sets headers which every answer needs,
// such as nosniff. If a response was compressed with gzip inside, a repeat gets it without unless its
// Accept-Encoding has gzip. Middleware that turns the handler's errors into responses goes
// inside, because its response is the outcome.
//
// # The handler
//
// The handler runs in the server's goroutine with a context that does not end when the
// client goes away. [idem.FromContext], [idem.CheckOwner] and [idem.DownstreamKey] work
// with that context. When the handler returns, its execution is over. CheckOwner,
// DownstreamKey and a [Transport] refuse goroutines that it has left running
// ([idem.ErrExecutionEnded]).
//
// [http.TimeoutHandler] does not belong inside. It returns while the handler still runs,
// the lock is given back, and a second execution may run beside the first. Set
// [idem.Policy].HandlerTimeout instead. It ends the handler's context, and the outcome is
// settled when the handler has returned. Outside, http.TimeoutHandler only answers the
// client early.
//
// The body has been read, up to [idem.Policy].MaxRequestBody, and put back. A handler that runs
// again after a conflict ([idem.WithConflictRetries]) gets the request as it was before its first
// run. The temporary files of a form are removed.
//
// A handler that forwards its request has to remove the Idempotency-Key of its client first. The
// same text may be the key of another client of yours, and the service would take both for one.
// Besides, net/http repeats a request without a body by itself if the header is there, whatever its
// method is. A [Transport] then sends a key of the operation ([idem.DownstreamKey]), for a service
// that honours keys.
//
// The response is kept in memory and sent with all of its headers after the outcome was
// settled. Stored are the status, the body, and Content-Type, Content-Language,
// Content-Encoding, Content-Disposition, Location and ETag if the handler set them.
// Replay of [exchange.Config] adds headers. Cookies, credentials, dates and trailers are never
// stored.
//
// A flushed response is kept as any other, because most of what is flushed is short.
// [net/http/httputil.ReverseProxy], for example, flushes every answer of unknown length. Three
// kinds of response are sent as they are written, are not stored, and repeats are refused as
// result-unavailable: an event stream (text/event-stream) that is flushed, any flushed response
// of a route with Streaming, and one that is longer than [idem.Policy].MaxResponseBody.
// Such a response has no Content-Length. Its end is kept back until the outcome is settled. If
// that turns out to be another one, the connection is broken off, and the client notices.
//
// A response is kept all the same where it could not be broken off: outside is a writer without
// an Unwrap method (as for [http.ResponseController]), or the client speaks HTTP/1.0. An engine
// from [idem.NewJoined] never has a part of a response sent early, because COMMIT can still undo
// a success. FlushError returns [http.ErrNotSupported] then for what should be a stream. Up to
// [idem.Policy].MaxResponseHeld bytes are kept. A longer body is dropped, and a success is
// answered as result-unavailable.
//
// A handler can hijack the connection, except in joined mode. Informational responses (103 Early
// Hints) go out at once and are not stored. In joined mode they are dropped.
//
// A panic is settled as an outcome in doubt, and then goes on. A panic that is recovered
// inside and answered with a status above 499 is in doubt too. Such a status starts a
// response over that was begun, or breaks off a response that was sent in part.
//
// A handler that answers with a refusal of this module, problem+json with a code of
// [idem.Code], has relayed it from a service that it called. That leaves its own outcome
// in doubt, and the answer is not stored. Give problems of your own other codes.
//
// A request may meet the middleware twice, or the handler may make a request within the
// process. Then the inner middleware passes the request through to its handler. It has to
// have the same policy. A request with another key is an execution of its own.
//
// A client that does not read blocks the writes of a streamed response. The blocked
// handler holds the key. Set [idem.Policy].HandlerTimeout on routes that stream. A second after
// it the writes fail.
//
// # When two requests are the same
//
// Two requests with one key are the same if their method, path, query, media type,
// content encoding and body are. Bodies in JSON and of forms are compared by value. See
// [idem.RequestFingerprint]. The host and other headers are not compared. A service that
// behaves differently for another Host, or for another header, names these in Compare of
// [exchange.Config], or makes them part of the scope.
//
// Middleware outside may have read the body without putting it back. Then different requests would
// look the same, so they are refused as internal. An empty body of unknown length (chunked, or
// HTTP/2) is refused too, because it looks like that. A client without a body sends
// Content-Length: 0, as all usual clients do. What cannot be noticed is a part that was read of a
// body of unknown length, or through a reader of the middleware's own. Middleware outside may
// replace the body, as one that decompresses or decrypts it does. The new body counts.
//
// # Where a key stands
//
// [StatusHandler] tells the owner of a key its state, attempt and time. For an open
// attempt it also tells whether an interrupted one is settled without a person
// ("resolver"). In "none", "issued" and "released" a request with the key runs. "unknown"
// without a resolver waits for an operator.
//
// # Clients
//
// [NewTransport] is the calling side. It gives each logical call one key, and sends the call
// again if that is safe. Inside a protected handler it derives the key from the operation.
package idemhttp
