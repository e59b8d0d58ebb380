package idemgrpc

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
)

var (
	errUndescribed = errors.New("a streaming method has to be described by generated code")
	errMidStream   = errors.New("others settled the outcome after a part of the answer had been sent")
)

// stream answers one call. It panics as the handler does.
func (x *Interceptors) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	ctx, m := ss.Context(), x.methods.of(info.FullMethod)
	switch {
	case m.exempt:
		return handler(srv, ss)
	case info.IsClientStream && x.hasKey(ctx):
		_ = x.refused(ctx, m, idem.NewRefusal(codeStreamUnsupported, errStreamUnsupported))
		ss.SetTrailer(pushback(0))
		return streamUnsupported().Err()
	case m.refuse:
		return refuseStream(ss, x.refused(ctx, m, errNoPolicy))
	case m.policy == nil || info.IsClientStream:
		return handler(srv, ss)
	}
	req, err := receive(ss, m)
	if err != nil {
		if _, ok := errors.AsType[*idem.Refusal](err); ok {
			return refuseStream(ss, x.refused(ctx, m, err))
		}
		return err // gRPC's own: there is no request
	}
	op, err := x.operation(ctx, m, req)
	part := false
	if err == nil {
		part, err = x.engine.Nested(ctx, &op)
	}
	switch {
	case err != nil:
		return refuseStream(ss, x.refused(ctx, m, err))
	case part: // of the execution that runs around it
		return handler(srv, &received{ServerStream: ss, request: req})
	}
	return x.serveStream(srv, ss, m, op, req, handler)
}

// receive reads the request, of which there is one.
func receive(ss grpc.ServerStream, m *method) (proto.Message, error) {
	var req proto.Message
	if m.desc != nil {
		req = newMessage(m.desc.Input().FullName())
	}
	if req == nil {
		return nil, idem.NewRefusal(idem.CodeInternal, errUndescribed)
	}
	return req, ss.RecvMsg(req)
}

func (x *Interceptors) serveStream(srv any, ss grpc.ServerStream, m *method, op idem.Operation, req proto.Message, handler grpc.StreamHandler) error {
	rec := newRecorder(ss, m, req)
	ran := false
	var failure error
	res, err := x.engine.Do(ss.Context(), op, func(ctx context.Context) (idem.Response, error) {
		ran = true
		rec.ctx = grpc.NewContextWithServerTransportStream(ctx, &rec.capture)
		failure = handler(srv, rec)
		return x.recorded(rec, failure), relayed(failure)
	})
	switch {
	case err != nil && !isRelayed(err):
		return refuseStream(ss, refusalOf(err))
	case ran && rec.stuck: // it has a part of the answer only
		return refuseStream(ss, x.refused(ss.Context(), m, idem.NewRefusal(idem.CodeUnavailable, errStuck)))
	case ran && !res.Replayed:
		header, trailer := rec.capture.kept()
		if !rec.capture.started() {
			_ = ss.SetHeader(header)
		}
		ss.SetTrailer(trailer)
		return failure
	case ran && rec.capture.started(): // what the client has is not the outcome
		return refuseStream(ss, x.refused(ss.Context(), m, idem.NewRefusal(idem.CodeOwnershipLost, errMidStream)))
	default:
		return x.replayStream(ss, m, &res.Response)
	}
}

// recorded is what is stored of a stream.
func (x *Interceptors) recorded(rec *recorder, failure error) idem.Response {
	o := rec.outcome
	if failure != nil {
		o.status = statusOf(failure).Proto()
	}
	if rec.omitted {
		return idem.Response{Status: int(o.status.GetCode()), Omitted: true}
	}
	header, trailer := rec.capture.kept()
	return x.stored(&o, rec.method.policy, header, trailer)
}

// replayStream answers with a stored outcome, message by message.
func (x *Interceptors) replayStream(ss grpc.ServerStream, m *method, r *idem.Response) error {
	o, messages, err := x.decode(m, r)
	if err != nil {
		return refuseStream(ss, x.refused(ss.Context(), m, idem.NewRefusal(idem.CodeResultUnavailable, err)))
	}
	_ = ss.SetHeader(marked(x.allow.stored(r.Header)))
	for _, msg := range messages {
		if err := ss.SendMsg(msg); err != nil {
			return err
		}
	}
	ss.SetTrailer(marked(x.allow.stored(r.Trailer)))
	if o.status != nil {
		return status.ErrorProto(o.status)
	}
	return nil
}

// refuseStream returns the error of a refusal.
func refuseStream(ss grpc.ServerStream, r *idem.Refusal) error {
	ss.SetTrailer(pushback(r.RetryAfter))
	return RefusalStatus(r).Err()
}
