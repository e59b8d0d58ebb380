// Package exchange is what an adapter for a web framework needs. It reads a request
// into an [idem.Operation], keeps the handler's response until the engine has settled
// the outcome, and writes answers, stored outcomes and refusals. An adapter translates
// between the framework and net/http, and decides nothing. The adapters for net/http
// and Gin are built on this package, and so are those for Echo and Fiber in
// examples/frameworks.
//
//	Idempotency-Key, scope ──▶ body, up to the limit ──▶ Engine.Do ──┬─▶ handler's response
//	        │                        │                      │       ├─▶ stored response (replayed)
//	        └── 400, 500             └── 400, 413           │       └─▶ refusal (problem+json)
//	                                              handler ◀─┘
//	                                              writes to a Writer
//
// # Writing an adapter
//
// This is for frameworks whose HTTP status is the outcome. Connect and gRPC-Web answer errors with
// 200, so their adapters call package idemgrpc instead, as examples/frameworks/idemconnect does.
//
//  1. Make a [Route] with [New] when the application sets up its routes, with the [Config] of the
//     application. Report the error there, and have a form beside it that panics.
//  2. For each request, make a [Call] and give it to [Route.Serve]. A framework on
//     net/http has its writer and request. Any other framework makes an [http.Request]
//     with method, RequestURI, URL, header, body and ContentLength, and a Writer that
//     copies status, header and body into its own response.
//  3. If Serve returns false, run the handler as without the middleware. The body of
//     Call.Request has been read and put back.
//  4. In Call.Next, give the framework's context the new request (or the context of
//     the new request) and the [Writer] in place of its own writer, and run the
//     rest of the chain. If the framework turns errors into responses, let it do so
//     within Next. Its answer to an error is the outcome. If a response had been begun
//     before the error, call [Writer.WriteHeader] with 500, so that repeats do not get
//     half a response.
//  5. Put the framework's writer and request back when Serve has returned or panicked.
//  6. If the framework holds the response until the end, set Call.Buffered. Copy the
//     response to the Writer at the end of Next. A response that the framework itself
//     produces later, such as a body stream, is announced with [Writer.Bypass].
//  7. If the framework shows that middleware has answered while the handler may still run, call
//     [Writer.Doubt] in Next. If it shows before that middleware will do so, return an error from
//     Call.Misplaced.
//  8. Run the suite in package exchangetest.
//
// [Route.Status] and [Route.IssueToken] are the handlers beside the middleware.
//
// # What a handler may do
//
// The response reaches the client after the outcome was settled, so that a client with
// an answer finds it again. A handler that flushes an event stream, hijacks the connection, or
// writes more than the policy allows gives this up. Its response is sent as it is written,
// except for its end, and repeats get result-unavailable. If such a response turns out not to be
// the outcome, it is broken off. Where that is impossible, and in joined mode, no part of a
// response is sent early. The [Writer] sees to all of this by itself.
package exchange
