package idemgrpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// recorder is the stream that the handler of a server stream sees. Messages
// pass through it to the client, and are kept up to the limit. As with every
// [grpc.ServerStream] one goroutine sends and one receives.
type recorder struct {
	received // from the client

	ctx     context.Context // the execution's
	method  *method
	capture capture
	outcome outcome
	size    int64 // of outcome's messages
	omitted bool  // over the limit, so nothing is kept
	stuck   bool  // the client does not read: nothing is sent any more
}

var _ grpc.ServerStream = (*recorder)(nil)

func newRecorder(ss grpc.ServerStream, m *method, req proto.Message) *recorder {
	r := &recorder{received: received{ServerStream: ss, request: req}, method: m}
	r.capture.method = m.name
	r.capture.send = ss.SendHeader
	return r
}

// Context is the execution's: it does not end when the client is gone.
func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) SetHeader(md metadata.MD) error { return r.capture.SetHeader(md) }

// SendHeader sends the header at once. That the client is gone is no error.
func (r *recorder) SendHeader(md metadata.MD) error {
	err := r.capture.SendHeader(md)
	if r.gone(err) {
		return nil
	}
	return err
}

func (r *recorder) SetTrailer(md metadata.MD) { _ = r.capture.SetTrailer(md) }

// SendMsg sends a message to the client, and keeps it. While it is kept it is
// no error that the client is gone: somebody will ask for it.
func (r *recorder) SendMsg(m any) error {
	var o outcome
	if err := o.add(m); err != nil {
		return err
	}
	// After what the client was shown, a status cannot say that nothing happened.
	if err := gate(r.ctx); err != nil {
		return err
	}
	err := r.capture.flush()
	if err == nil {
		err = r.pass(m)
	}
	gone := r.gone(err)
	if err != nil && !gone {
		return err
	}
	r.keep(&o)
	if gone && r.omitted {
		return err
	}
	return nil
}

// sendGrace is how long sending may still take once the execution's context has
// ended.
const sendGrace = time.Second

var errStuck = status.Error(codes.DeadlineExceeded, "idemgrpc: the client does not read")

// pass sends a message. A client that does not read blocks that by HTTP/2's flow
// control, and with it the handler, which holds the key and which a shutdown waits
// for. So once the context of the execution has ended, such a client counts as gone
// after sendGrace. What is still being sent ends with the call.
func (r *recorder) pass(m any) error {
	if r.stuck {
		return errStuck
	}
	sent := make(chan error, 1)
	go func() { sent <- r.ServerStream.SendMsg(m) }()
	select {
	case err := <-sent:
		return err
	case <-r.ctx.Done():
	}
	grace := time.NewTimer(sendGrace)
	defer grace.Stop()
	select {
	case err := <-sent:
		return err
	case <-grace.C:
		r.stuck = true
		return errStuck
	}
}

// gone says that an error is the client's leaving.
func (r *recorder) gone(err error) bool {
	if err == nil {
		return false
	}
	if r.ServerStream.Context().Err() != nil {
		return true
	}
	switch status.Code(err) {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return true
	}
	return false
}

// keep adds a message, or gives up keeping any.
func (r *recorder) keep(o *outcome) {
	if r.omitted {
		return
	}
	r.size += int64(len(o.messages[0]))
	if r.size > r.method.policy.MaxResponseBody || r.outcome.typeName != "" && r.outcome.typeName != o.typeName {
		r.omitted, r.outcome = true, outcome{}
		return
	}
	r.outcome.typeName = o.typeName
	r.outcome.messages = append(r.outcome.messages, o.messages[0])
}
