package idemgrpc

import (
	"context"
	"encoding/binary"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
)

var (
	errNoPolicy      = errors.New("the method has no policy, and one is required")
	errNotReplayable = errors.New("the stored outcome is not one of this method")
	errNoMessage     = status.Error(codes.Internal, "the method returned no message")
	errBadMessage    = status.Error(codes.Internal, "the method's message cannot be encoded")
)

// unary answers one call. It panics as the handler does.
func (x *Interceptors) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	m := x.methods.of(info.FullMethod)
	switch {
	case m.refuse:
		return nil, refuseUnary(ctx, x.refused(ctx, m, errNoPolicy))
	case m.policy == nil:
		return handler(ctx, req)
	}
	op, err := x.operation(ctx, m, req)
	part := false
	if err == nil {
		part, err = x.engine.Nested(ctx, &op)
	}
	switch {
	case err != nil:
		return nil, refuseUnary(ctx, x.refused(ctx, m, err))
	case part: // of the execution that runs around it
		return handler(ctx, req)
	}
	call := unaryCall{interceptors: x, method: m, capture: capture{method: m.name}}
	res, err := x.engine.Do(ctx, op, func(ctx context.Context) (idem.Response, error) {
		r := call.run(ctx, req, handler)
		return r, relayed(call.err)
	})
	switch {
	case err != nil && !isRelayed(err):
		return nil, refuseUnary(ctx, refusalOf(err))
	case call.ran && !res.Replayed:
		header, trailer := call.capture.kept()
		put(ctx, header, trailer)
		return call.answer, call.err
	default:
		return x.replayUnary(ctx, m, &res.Response)
	}
}

// unaryCall is what the handler did.
type unaryCall struct {
	interceptors *Interceptors
	method       *method
	capture      capture
	ran          bool
	answer       any
	err          error
}

// run runs the handler and returns what is stored of its answer.
func (c *unaryCall) run(ctx context.Context, req any, handler grpc.UnaryHandler) idem.Response {
	c.ran = true
	c.answer, c.err = handler(grpc.NewContextWithServerTransportStream(ctx, &c.capture), req)
	var r idem.Response
	if c.err == nil {
		r.Body, c.err = encodeAnswer(c.answer)
	}
	x, p := c.interceptors, c.method.policy
	header, trailer := c.capture.kept()
	if c.err != nil {
		c.answer = nil
		return x.stored(&outcome{status: statusOf(c.err).Proto()}, p, header, trailer)
	}
	return x.kept(r, p, header, trailer)
}

// encodeAnswer is the outcome of a method that has returned a message. The error
// is a status: what gRPC itself would answer, found early enough to be the
// outcome.
func encodeAnswer(answer any) ([]byte, error) {
	msg := messageOf(answer)
	if msg == nil {
		return nil, errNoMessage
	}
	size := proto.Size(msg)
	b := appendHead(binary.MaxVarintLen32+size, msg.ProtoReflect().Descriptor().FullName(), 1)
	head := binary.AppendUvarint(b, uint64(size))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(head, msg)
	if err != nil || len(b)-len(head) != size { // somebody changes it meanwhile
		return nil, errBadMessage
	}
	return b, nil
}

// add appends a message. The error is a status: what gRPC itself would answer,
// found early enough to be the outcome.
func (o *outcome) add(answer any) error {
	msg := messageOf(answer)
	if msg == nil {
		return errNoMessage
	}
	b, err := proto.Marshal(msg)
	if err != nil {
		return errBadMessage
	}
	o.typeName = msg.ProtoReflect().Descriptor().FullName()
	o.messages = append(o.messages, b)
	return nil
}

// stored is the outcome as the engine is to know it.
func (x *Interceptors) stored(o *outcome, p *idem.Policy, header, trailer metadata.MD) idem.Response {
	r, err := o.response()
	if err != nil {
		return idem.Response{Status: int(o.status.GetCode()), Omitted: true}
	}
	return x.kept(r, p, header, trailer)
}

// kept is a response with what is kept of its metadata, or none over the limit.
func (x *Interceptors) kept(r idem.Response, p *idem.Policy, header, trailer metadata.MD) idem.Response {
	if int64(len(r.Body)) > p.MaxResponseBody {
		return idem.Response{Status: r.Status, Omitted: true}
	}
	r.Header, r.Trailer = x.allow.pick(header), x.allow.pick(trailer)
	return r
}

// replayUnary answers with a stored outcome.
func (x *Interceptors) replayUnary(ctx context.Context, m *method, r *idem.Response) (any, error) {
	o, messages, err := x.decode(m, r)
	want := 1 // message, or none beside an error
	if o.status != nil {
		want = 0
	}
	if err == nil && len(messages) != want {
		err = errNotReplayable
	}
	if err != nil {
		return nil, refuseUnary(ctx, x.refused(ctx, m, idem.NewRefusal(idem.CodeResultUnavailable, err)))
	}
	put(ctx, marked(x.allow.stored(r.Header)), marked(x.allow.stored(r.Trailer)))
	if o.status != nil {
		return nil, status.ErrorProto(o.status)
	}
	return messages[0], nil
}

// marked says of metadata that the outcome was stored. It is in the trailer as
// well: a connection can break between the header and the outcome.
func marked(md metadata.MD) metadata.MD {
	md[ReplayedMetadataKey] = []string{"true"}
	return md
}

// decode reads a stored outcome and its messages.
func (x *Interceptors) decode(m *method, r *idem.Response) (outcome, []proto.Message, error) {
	o, err := decodeOutcome(r)
	if err != nil {
		return o, nil, err
	}
	messages := make([]proto.Message, len(o.messages))
	for i, b := range o.messages {
		msg := newMessage(o.typeName)
		if msg == nil && m.output != nil { // the type was renamed since
			msg = newMessage(m.output.FullName())
		}
		if msg == nil {
			return o, nil, errNotReplayable
		}
		if err := proto.Unmarshal(b, msg); err != nil {
			return o, nil, err
		}
		messages[i] = msg
	}
	return o, messages, nil
}

// refuseUnary returns the error of a refusal.
func refuseUnary(ctx context.Context, r *idem.Refusal) error {
	put(ctx, nil, pushback(r.RetryAfter))
	return RefusalStatus(r).Err()
}
