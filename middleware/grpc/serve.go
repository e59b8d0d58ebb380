package idemgrpc

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
)

var (
	errUndescribed       = errors.New("a streaming method has to be described by generated code")
	errStreamUnsupported = errors.New("a stream of requests carries a key")
	errMidStream         = errors.New("the outcome was settled by others after a part of the answer had been sent")
	errNotReplayable     = errors.New("the stored outcome is not one of this method")
)

// unary answers one call. It panics as the handler does.
func (x *Interceptors) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m := x.methods.of(info.FullMethod)
	switch {
	case m.refuse:
		return nil, x.report(ctx, m, errNoPolicy)
	case m.policy == nil:
		return handler(ctx, req)
	}
	op, part, err := x.admit(ctx, m, req)
	switch {
	case err != nil:
		return nil, x.report(ctx, m, err)
	case part:
		return handler(ctx, req)
	}
	var answer any
	var failure error
	ran, c := false, &capture{method: m.name}
	res, err := x.engine.Do(ctx, op, func(ctx context.Context) (idem.Response, error) {
		ran = true
		answer, failure = handler(grpc.NewContextWithServerTransportStream(ctx, c), req)
		var o outcome
		if failure == nil {
			failure = o.add(answer)
		}
		if failure != nil {
			answer = nil
		}
		return x.response(&o, failure, c, m.policy), relayed(failure)
	})
	switch {
	case err != nil && !isRelayed(err):
		return nil, refuse(ctx, refusalOf(err))
	case ran && !res.Replayed:
		header, trailer, _ := c.kept()
		put(ctx, header, trailer)
		return answer, failure
	}
	messages, err := x.replayed(ctx, m, &res.Response, true)
	if err != nil {
		return nil, err
	}
	return messages[0], nil
}

// stream answers one call. It panics as the handler does.
func (x *Interceptors) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, m := ss.Context(), x.methods.of(info.FullMethod)
	switch {
	case m.exempt:
		return handler(srv, ss)
	case info.IsClientStream && len(metadata.ValueFromIncomingContext(ctx, x.options.metadataKey)) > 0:
		x.engine.ReportRefused(ctx, m.route(), idem.NewRefusal(codeStreamUnsupported, errStreamUnsupported))
		put(ctx, nil, pushback(0))
		return streamUnsupported().Err()
	case m.refuse:
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
	op, part, err := x.admit(ctx, m, req)
	switch {
	case err != nil:
		return x.report(ctx, m, err)
	case part:
		return handler(srv, &received{ServerStream: ss, request: req})
	}
	return x.serveStream(srv, ss, m, op, req, handler)
}

func (x *Interceptors) serveStream(srv any, ss grpc.ServerStream, m *method, op idem.Operation, req proto.Message, handler grpc.StreamHandler) error {
	ctx := ss.Context()
	rec := &recorder{received: received{ServerStream: ss, request: req}, limit: m.policy.MaxResponseBody}
	rec.capture.method, rec.capture.send = m.name, ss.SendHeader
	ran := false
	var failure error
	res, err := x.engine.Do(ctx, op, func(ctx context.Context) (idem.Response, error) {
		ran = true
		rec.ctx = grpc.NewContextWithServerTransportStream(ctx, &rec.capture)
		failure = handler(srv, rec)
		r := x.response(&rec.outcome, failure, &rec.capture, m.policy)
		if rec.omitted {
			r = idem.Response{Status: r.Status, Omitted: true}
		}
		return r, relayed(failure)
	})
	header, trailer, sent := rec.capture.kept()
	switch {
	case err != nil && !isRelayed(err):
		return refuse(ctx, refusalOf(err))
	case ran && rec.stuck: // the client has only a part of the answer
		return x.report(ctx, m, idem.NewRefusal(idem.CodeUnavailable, errStuck))
	case ran && !res.Replayed:
		if sent {
			header = nil
		}
		put(ctx, header, trailer)
		return failure
	case ran && sent: // what the client has is not the outcome
		return x.report(ctx, m, idem.NewRefusal(idem.CodeOwnershipLost, errMidStream))
	}
	messages, end := x.replayed(ctx, m, &res.Response, false)
	for _, msg := range messages {
		if err := ss.SendMsg(msg); err != nil {
			return err
		}
	}
	return end
}

// response returns the outcome as the engine is to know it.
func (x *Interceptors) response(o *outcome, failure error, c *capture, p *idem.Policy) idem.Response {
	if failure != nil {
		o.status = statusOf(failure).Proto()
	}
	r, err := o.response()
	if err != nil || int64(len(r.Body)) > p.MaxResponseBody {
		return idem.Response{Status: int(o.status.GetCode()), Omitted: true}
	}
	header, trailer, _ := c.kept()
	r.Header, r.Trailer = x.pick(header), x.pick(trailer)
	return r
}

// replayed sets the metadata of a stored outcome and returns its messages and its error.
// A unary outcome has one of the two.
func (x *Interceptors) replayed(ctx context.Context, m *method, r *idem.Response, unary bool) ([]proto.Message, error) {
	o, err := decodeOutcome(r)
	var messages []proto.Message
	if err == nil {
		messages, err = o.decode(m)
	}
	want := 1
	if o.status != nil {
		want = 0
	}
	if err == nil && unary && len(messages) != want {
		err = errNotReplayable
	}
	if err != nil {
		return nil, x.report(ctx, m, idem.NewRefusal(idem.CodeResultUnavailable, err))
	}
	put(ctx, x.marked(r.Header), x.marked(r.Trailer))
	return messages, status.ErrorProto(o.status)
}
