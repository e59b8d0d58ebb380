package idemgrpc

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

var (
	errUndescribed       = errors.New("a streaming method has to be described by generated code")
	errStreamUnsupported = errors.New("a stream of requests carries a key, or its method has a policy")
	errTooLongToHold     = errors.New("the messages are more than the policy keeps in memory until COMMIT (MaxResponseHeld)")
	errMidStream         = errors.New("the outcome was settled by others after a part of the answer had been sent")
)

// unary answers one call. It panics as the handler does.
func (x *Interceptors) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m := x.options.method(info.FullMethod)
	op, pass, err := x.admit(ctx, m, req)
	switch {
	case err != nil:
		return nil, x.report(ctx, m, err)
	case pass:
		return handler(ctx, req)
	}
	var response any
	again := x.engine.MayRunAgain(&op)
	messages, live, err := x.execute(ctx, m, op, nil, func(ctx context.Context, a *answer) (err error) {
		req := req
		if again {
			if ctx, req, err = inputOf(ctx, req); err != nil {
				return err
			}
		}
		r, err := handler(ctx, req)
		if err != nil {
			return err
		}
		packed, err := pack(r)
		if err == nil {
			response, a.outcome.Messages = r, append(a.outcome.Messages, packed)
		}
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case live:
		return response, nil
	}
	return messages[0], nil
}

// stream answers one call. It panics as the handler does.
func (x *Interceptors) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, m := ss.Context(), x.options.method(info.FullMethod)
	switch {
	case info.IsClientStream && !m.exempt && (m.chosen || len(metadata.ValueFromIncomingContext(ctx, x.options.MetadataKey)) > 0):
		return x.report(ctx, m, idem.NewRefusal(codeStreamUnsupported, errStreamUnsupported))
	case m.refuse, info.IsClientStream && m.policy != nil && x.options.RefuseUnknown:
		return x.report(ctx, m, errNoPolicy)
	case m.policy == nil || info.IsClientStream:
		return handler(srv, ss)
	}
	var req proto.Message
	if m.desc != nil {
		req = newMessage(m.desc.Input().FullName())
	}
	if req == nil {
		return x.report(ctx, m, errUndescribed)
	}
	if err := ss.RecvMsg(req); err != nil {
		return err // of gRPC itself: there is no request
	}
	once := received{ServerStream: ss, request: req}
	op, pass, err := x.admit(ctx, m, req)
	switch {
	case err != nil:
		return x.report(ctx, m, err)
	case pass:
		return handler(srv, &once)
	}
	joined, send := x.engine.Joined(), ss.SendHeader
	if joined {
		send = nil
	}
	messages, _, end := x.execute(ctx, m, op, send, func(ctx context.Context, a *answer) error {
		err := handler(srv, &recorder{received: once, ctx: withOwnPeer(ctx), answer: a, policy: m.policy, joined: joined})
		if err != nil && joined {
			a.rollBack()
		}
		return err
	})
	for _, msg := range messages {
		if err := ss.SendMsg(msg); err != nil {
			return err
		}
	}
	return end
}

// inputOf returns what one run of a unary handler gets. A run that met a conflict may have
// changed its request and its peer, and the next run must not see that. Incoming metadata is
// copied by gRPC itself for each reader.
func inputOf(ctx context.Context, req any) (context.Context, any, error) {
	clone, err := cloneOf(req)
	if err != nil {
		return ctx, nil, status.Error(codes.Internal, "the request cannot be copied for another run")
	}
	return withOwnPeer(ctx), clone, nil
}

// withOwnPeer returns the context of one run, with a copy of the peer.
func withOwnPeer(ctx context.Context) context.Context {
	from, known := peer.FromContext(ctx)
	if !known {
		return ctx
	}
	p := *from
	return peer.NewContext(ctx, &p)
}

// execute has the engine run a handler, or answer without it. Each run of the handler gets
// an answer of its own, with send for its header. live reports whether the client gets the
// handler's own answer, whose metadata execute sets. messages are then those that were held.
// Otherwise messages and err are a stored outcome, or err is a refusal.
func (x *Interceptors) execute(ctx context.Context, m *method, op idem.Operation, send func(metadata.MD) error, handler func(context.Context, *answer) error) (messages []any, live bool, err error) {
	ran := false
	var failure error
	a := new(answer)
	run, keyed := x.engine.Do, op.Key != ""
	if !keyed {
		run = x.engine.DoWithoutKey
	}
	res, err := run(ctx, op, func(ctx context.Context) (idem.Response, error) {
		ran = true
		a = &answer{method: m.name, send: send}
		failure = handler(grpc.NewContextWithServerTransportStream(ctx, a), a)
		idem.ReportFailure(ctx, failure)
		if !keyed { // the client does not read refusals as ours
			return x.response(a, failure, m.policy), nil
		}
		return x.response(a, failure, m.policy), adapter.Relayed(infoOf(failure).GetReason())
	})
	header, trailer, sent := a.metadata()
	switch {
	case err != nil:
		refusal := adapter.RefusalOf(err)
		if ran && keyed && refusal.Code == idem.CodeOutcomeUnknown {
			pause, _ := retryDelay(failure)
			refusal = adapter.ComeBack(refusal, pause)
		}
		return nil, false, refuse(ctx, refusal)
	case a.stuck: // the client has only a part of the answer
		return nil, false, x.report(ctx, m, idem.NewRefusal(idem.CodeUnavailable, errStuck))
	case ran && !res.Replayed && a.lost:
		return nil, false, x.report(ctx, m, adapter.TooLong(errTooLongToHold, keyed))
	case ran && !res.Replayed:
		put(ctx, header, trailer)
		if failure != nil && status.Code(failure) == codes.OK { // the client would read it as success
			failure = statusOf(failure).Err()
		}
		return a.held, true, failure
	case sent: // what the client has is not the outcome
		return nil, false, x.report(ctx, m, idem.NewRefusal(idem.CodeOwnershipLost, errMidStream))
	}
	o, err := decode(&res.Response)
	if err == nil {
		messages, failure, err = messagesOf(o, m)
	}
	if err != nil {
		return nil, false, x.report(ctx, m, idem.NewRefusal(idem.CodeResultUnavailable, err))
	}
	put(ctx, x.marked(res.Response.Header), x.marked(res.Response.Trailer))
	return messages, false, failure
}

// response returns the outcome as the engine is to know it.
func (x *Interceptors) response(a *answer, failure error, p *idem.Policy) idem.Response {
	r, err := encode(&a.outcome, failure)
	if err != nil || a.omitted || int64(len(r.Body)) > p.MaxResponseBody {
		return idem.Response{Status: r.Status, Omitted: true}
	}
	header, trailer, _ := a.metadata()
	r.Header, r.Trailer = x.pick(header), x.pick(trailer)
	return r
}
