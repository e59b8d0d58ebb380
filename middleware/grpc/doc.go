// Package idemgrpc makes gRPC methods safe to retry, on both sides of the wire.
//
//	interceptors, err := idemgrpc.New(engine,
//		[]idem.Policy{{Name: "/payments.v1.PaymentService/CreatePayment", Scope: merchant, InDoubt: idem.LeaveUnknown()}})
//	server := grpc.NewServer(
//		grpc.ChainUnaryInterceptor(authenticate, validate, interceptors.Unary()),
//		grpc.ChainStreamInterceptor(authenticateStream, interceptors.Stream()))
//
//	conn, err := grpc.NewClient(target,
//		grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(idemgrpc.WithKeysHonoured())),
//		grpc.WithStreamInterceptor(idemgrpc.MustStreamClientInterceptor(idemgrpc.WithKeysHonoured())))
//
// A call carries a key in its metadata, as idempotency-key, or in a field of its request
// (AIP-155). The first call with a key runs the handler. Every repeat gets the stored
// outcome, marked "idempotent-replayed: true" in its header. Package [idem] says what is
// guaranteed.
//
// # Servers
//
// The interceptors protect the methods that have a policy. Exempt of [Config] names methods that
// ignore the key. The services of gRPC itself, such as reflection and health, always ignore it.
// OptionalKey names methods that also take calls without a key.
//
// The status code decides what
// is stored. Terminal errors are stored and replayed, as successes are. An error that
// leaves open whether something happened (UNKNOWN, UNAVAILABLE, INTERNAL,
// DEADLINE_EXCEEDED and so on) is in doubt. UNAUTHENTICATED, PERMISSION_DENIED and
// RESOURCE_EXHAUSTED give the key back unless the handler has passed [idem.CheckOwner] or
// [idem.DownstreamKey].
//
// Stored are the message, the code, its text and all of its details, and the header and
// trailer metadata on an allow-list (Replay of [Config] adds to it).
//
// Refusals have the code of [idem.Code], an ErrorInfo whose reason is the refusal's code
// in upper snake case (domain [Domain]), and a RetryInfo if the call is worth sending
// again. Their trailer has "grpc-retry-pushback-ms" (gRFC A6), which is negative if the
// call is not worth it.
//
// A handler that returns a refusal has relayed it from a service that it called. Its own
// outcome is then in doubt, and the refusal is not stored.
//
// Interceptors that a call meets twice execute it once. The inner ones pass it through.
// They have to have the same policy. A call with another key is an execution of its own.
//
// Authentication and validation go outside, before these interceptors in the chain.
// Interceptors that turn the handler's errors into statuses go inside, because their
// status is the outcome. A panic is settled as an outcome in doubt and goes on, so have a
// recovering interceptor outside. [grpc.Server.Stop] does not wait for handlers that
// protect money. Use GracefulStop, or the server option [grpc.WaitForHandlers].
//
// # Where a key stands
//
// [RegisterStatusServer] serves idemkeeper.v1.Idempotency. Its GetStatus tells the owner
// of a key its state, attempt and time. For an open attempt it also tells whether an
// interrupted one is settled without a person. In STATE_NONE, STATE_ISSUED and
// STATE_RELEASED a call with the key runs. STATE_UNKNOWN without a resolver waits for an
// operator. The interceptors leave the method alone, because it uses no key up. The
// generated client is package idemkeeperv1.
//
//	err := idemgrpc.RegisterStatusServer(server, engine, policy)
//
//	ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
//	status, err := idemkeeperv1.NewIdempotencyClient(conn).GetStatus(ctx, &idemkeeperv1.GetStatusRequest{})
//
// # The handler
//
// The handler runs with a context that neither the client's cancellation nor its deadline
// ends. [idem.Policy].HandlerTimeout does. [idem.FromContext], [idem.CheckOwner] and
// [idem.DownstreamKey] work with it until the handler has returned. Then the execution is
// over, and they and the client interceptors refuse goroutines that the handler has left
// running ([idem.ErrExecutionEnded]). Metadata of [grpc.SetHeader], [grpc.SendHeader] and
// [grpc.SetTrailer] is sent after the outcome was settled. [grpc.SetSendCompressor] is
// not available.
//
// # Streams
//
// The messages of a server stream reach the client as they are sent, unless they wait for a
// COMMIT (below), and are recorded up to [idem.Policy].MaxResponseBody. The status follows when the outcome has been settled.
// A repeat gets the recorded messages one by one. Past the limit it is refused as
// result-unavailable. When the client is gone the handler goes on, and its messages are
// recorded. Only past the limit, when they can never be read, does SendMsg report that
// the client is gone.
//
// A client that stays and does not read holds its own call up. Flow control blocks
// SendMsg until a second after the end of the context, so set [idem.Policy].HandlerTimeout on
// methods that stream. Without it the key stays pending until the connection ends. Let
// the server end such connections ([grpc.KeepaliveParams]).
//
// A message that was sent counts as an effect. A status after it never gives the key
// back.
//
// With an engine from [idem.NewJoined] the header and the messages wait in memory until COMMIT is
// known, because it can still undo what they tell. Past [idem.Policy].MaxResponseHeld they are
// dropped. The handler's writes then commit, and the client gets result-unavailable. If the
// handler returns an error, the client gets its status and none of the messages, because the
// writes that they tell of are rolled back. [idem.KeepWrites] does not keep messages.
//
// Streams of requests cannot be compared with an earlier one before they run. Such a call
// with a key is refused with UNIMPLEMENTED rather than run without protection.
//
// # Which requests are the same
//
// Two requests with one key are the same if method and message are. The message is
// compared in a canonical wire format (fingerprint.go) that depends only on the message and its
// declaration. It stays the same across builds, and when a server learns a new field, if clients write
// that field in canonical form.
//
// Messages of older generators, such as gogo/protobuf, and of descriptors that were loaded at
// run time work as well. A replay of a type that is not in Google's registry has the bytes of
// the first answer, so it needs a codec of protobuf. A request that cannot be compared is
// refused as internal before anything runs. Such are requests of another codec that are no
// protobuf messages, and messages of gogo/protobuf with a part from a file that Google's
// registry does not know.
//
// # Clients
//
// The client interceptors give each logical call one key, made before the first attempt,
// and send it again if that is safe and may help. Inside a handler that an [idem.Engine]
// runs, the key is derived from the operation ([idem.DownstreamKey]), so that a chain of
// services is safe end to end.
//
// # Retry policies and hedging
//
// The retryPolicy of a service config works beneath the client interceptors, which have chosen
// the key by then. It keeps metadata, so each of its attempts has the same key, and it obeys
// the pushback of a refusal. List UNAVAILABLE in it, and ABORTED for calls that are still running.
//
// Hedging sends a second attempt while the first one still runs. That one is a duplicate, and
// by default it is refused at once with ABORTED and IN_PROGRESS. A hedging client takes
// that for the answer and cancels the first attempt, so its caller sees ABORTED although the
// payment happens. Set [idem.Policy].DuplicateWait on methods that are hedged, to more than the
// longest call. The duplicates then wait and get the outcome of the first. Without it, list
// ABORTED as a non-fatal code of the hedging policy. The handler runs once either way.
//
// A program that hedges by itself, above the client interceptors, has to put the key into the
// metadata first. Otherwise each attempt is a call with a key of its own, and each one pays.
//
// # Behind grpc-gateway
//
// The gateway's default matcher drops the header Idempotency-Key, and the call is then refused
// as key-missing. Its table of statuses makes 400 of an unknown outcome, and 409 and 499 of methods
// that end with ABORTED and CANCELLED. HTTP clients read these as final answers. The package
// examples/frameworks/idemgateway has options for the gateway's mux that hand the key on, send
// the marker under its own name and write the documented refusals. docs/adopting.md shows it,
// and the other way, with package idemhttp in front of the gateway.
package idemgrpc
