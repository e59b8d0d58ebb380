// Package idemgrpc makes gRPC methods safe to retry, on both sides of the wire.
//
//	interceptors, err := idemgrpc.New(engine,
//		idemgrpc.WithPolicy("/payments.v1.PaymentService/CreatePayment", idem.Policy{Scope: merchant}))
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, validate, interceptors.Unary()),
//		grpc.ChainStreamInterceptor(authenticateStream, interceptors.Stream()))
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithUnaryInterceptor(idemgrpc.UnaryClientInterceptor()),
//		grpc.WithStreamInterceptor(idemgrpc.StreamClientInterceptor()))
//
// A call carries a key in its metadata, as idempotency-key, or in a field of
// its request (AIP-155). The first call with a key runs the handler; every
// repeat gets the stored outcome, marked "idempotent-replayed: true" in its
// header. What is guaranteed, and what is not, says package [idem].
//
// # Servers
//
// The interceptors protect the methods that have a policy. Which outcomes are
// stored is decided by the status code: terminal errors are stored and replayed
// as successes are, in doubt is what leaves open whether something happened
// (UNKNOWN, UNAVAILABLE, INTERNAL, DEADLINE_EXCEEDED and so on), and
// UNAUTHENTICATED, PERMISSION_DENIED and RESOURCE_EXHAUSTED give the key back
// unless the handler has passed [idem.CheckOwner] or [idem.DownstreamKey].
//
// Stored are the message, the code, its text and all of its details, and the
// header and trailer metadata on an allow-list ([WithReplayMetadata]).
//
// Refusals have the code that [idem.Code] names, an ErrorInfo whose reason is
// the refusal's code in upper snake case (domain [Domain]), a RetryInfo where it is
// worth sending again, and "grpc-retry-pushback-ms" in the trailer (gRFC A6),
// negative where it is not.
//
// A handler that returns a refusal has relayed it from a service that it called.
// That leaves its own outcome in doubt, whatever the code, and is not stored.
//
// Interceptors that are met twice execute once: the inner ones pass the call
// through. They have to have the same policy. Another key is an execution of its own.
//
// Authentication and validation go outside, that is, before these interceptors
// in the chain; what turns the handler's errors into statuses goes inside: what
// it makes of them is the outcome. A panic is settled as an outcome in doubt and
// goes on: have a recovering interceptor outside. [grpc.Server.Stop] does not
// wait for handlers that protect money; use GracefulStop, or the server option
// [grpc.WaitForHandlers].
//
// # Where a key stands
//
// [RegisterStatusServer] serves idemkeeper.v1.Idempotency, whose GetStatus tells
// the owner of a key its state, attempt, since when, and, of an attempt that is
// open, whether somebody but a person settles it where it was interrupted. In
// STATE_NONE, STATE_ISSUED and STATE_RELEASED a call with the key runs;
// STATE_UNKNOWN without a resolver waits for an operator. The interceptors leave
// the method alone: it uses no key up. The generated client is package
// idemkeeperv1.
//
//	idemgrpc.RegisterStatusServer(server, engine, policy)
//
//	ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
//	status, err := idemkeeperv1.NewIdempotencyClient(conn).GetStatus(ctx, &idemkeeperv1.GetStatusRequest{})
//
// # The handler
//
// It runs with a context that neither the client's cancellation nor its
// deadline ends; [idem.Policy].HandlerTimeout does. [idem.FromContext],
// [idem.CheckOwner] and [idem.DownstreamKey] work with it until the handler has
// returned: then the execution is over, and they and the client interceptors
// refuse what the handler has left running ([idem.ErrExecutionEnded]). What it sets with
// [grpc.SetHeader], [grpc.SendHeader] and [grpc.SetTrailer] is sent once the
// outcome has been settled. [grpc.SetSendCompressor] is not available in it.
//
// # Streams
//
// The messages of a server stream reach the client as they are sent, and are
// recorded up to [idem.Policy].MaxResponseBody; the status follows when the
// outcome has been settled. A repeat gets the recorded messages one by one; past
// the limit it is refused as result-unavailable. When the client is gone the
// handler goes on, and what it sends is recorded. Only past the limit, when
// nobody could ever read it, SendMsg reports that the client is gone.
//
// A client that stays and does not read holds its own call up: flow control
// blocks SendMsg, which not even [idem.Policy].HandlerTimeout ends, and the key stays
// pending until the connection does. Let the server end such connections
// ([grpc.KeepaliveParams]), and leave streams alone whose clients are strangers.
//
// A message that was sent is taken for an effect: a status after it never gives
// the key back.
//
// Streams of requests cannot be compared with an earlier one before they run.
// Where such a call carries a key it is refused with UNIMPLEMENTED rather than
// run without protection; [WithExempt] names methods that ignore it. The
// services of gRPC itself, such as reflection and health, always do.
//
// # Which requests are the same
//
// Two requests with one key are the same when method and message are. The
// message is compared in a canonical wire format that is stable across builds:
// see [AppendCanonical].
//
// # Clients
//
// The client interceptors give each logical call one key, made before the first
// attempt, and send it again when that is safe and may help. Inside a handler
// that an [idem.Engine] runs, the key is derived from the operation
// ([idem.DownstreamKey]), so that a chain of services is safe end to end.
package idemgrpc
