package idemgrpc

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

var errHeaderSent = errors.New("idemgrpc: the header has been sent")

// capture keeps the metadata of a handler, set through its context or its stream, until
// the engine has settled the outcome. It is safe for concurrent use.
type capture struct {
	method string
	// send sends the header of a stream, which cannot wait for the outcome. It is nil for
	// a unary call.
	send func(metadata.MD) error

	mu      sync.Mutex
	header  metadata.MD
	trailer metadata.MD
	sent    bool // the handler has sent the header, as far as it knows
}

var _ grpc.ServerTransportStream = (*capture)(nil)

// Method returns the full name of the method.
func (c *capture) Method() string { return c.method }

// SetHeader adds to the header, until that is sent.
func (c *capture) SetHeader(md metadata.MD) error { return c.add(md, false) }

// SendHeader adds to the header. For a stream it sends the header at once.
func (c *capture) SendHeader(md metadata.MD) error { return c.add(md, true) }

func (c *capture) add(md metadata.MD, send bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return errHeaderSent
	}
	c.header, c.sent = metadata.Join(c.header, md), send
	if send && c.send != nil {
		return c.send(c.header)
	}
	return nil
}

// SetTrailer adds to the trailer.
func (c *capture) SetTrailer(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trailer = metadata.Join(c.trailer, md)
	return nil
}

// kept returns the metadata so far, and whether the header was sent. The maps do not
// change later.
func (c *capture) kept() (header, trailer metadata.MD, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header, c.trailer, c.sent
}

// received is a server stream after its one request was read.
type received struct {
	grpc.ServerStream // the client's

	request proto.Message // nil once the handler has it
}

// RecvMsg hands over the request.
func (r *received) RecvMsg(m any) error {
	if r.request == nil {
		return io.EOF
	}
	dst := messageOf(m)
	if dst == nil {
		return status.Errorf(codes.Internal, "idemgrpc: cannot receive into a %T", m)
	}
	b, err := proto.Marshal(r.request)
	if err == nil {
		err = proto.Unmarshal(b, dst)
	}
	if err != nil {
		return status.Errorf(codes.Internal, "idemgrpc: receiving into a %T: %v", m, err)
	}
	r.request = nil
	return nil
}

// recorder is the stream of a server stream's handler. Messages pass through
// it to the client, and are kept up to the limit. As with every [grpc.ServerStream] one
// goroutine sends and one receives.
type recorder struct {
	received // from the client

	ctx     context.Context // the execution's, so it does not end with the client
	capture capture
	outcome outcome
	limit   int64 // of the messages
	size    int64 // of the messages
	omitted bool  // over the limit: nothing is kept
	stuck   bool  // the client does not read: nothing more is sent
}

var _ grpc.ServerStream = (*recorder)(nil)

func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) SetHeader(md metadata.MD) error { return r.capture.SetHeader(md) }

// SendHeader sends the header at once. A client that is gone is no error.
func (r *recorder) SendHeader(md metadata.MD) error {
	err := r.capture.SendHeader(md)
	if r.gone(err) {
		return nil
	}
	return err
}

func (r *recorder) SetTrailer(md metadata.MD) { _ = r.capture.SetTrailer(md) }

// SendMsg sends a message to the client and keeps it. A client that is gone is no error
// while the messages are kept, because it will ask for them.
func (r *recorder) SendMsg(m any) error {
	var o outcome
	if err := o.add(m); err != nil {
		return err
	}
	// Once the client has seen a message, no status may give the key back.
	if err := gate(r.ctx); err != nil {
		return err
	}
	err := r.capture.SendHeader(nil)
	if err == nil || errors.Is(err, errHeaderSent) {
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

// keep adds a message, or gives up keeping any.
func (r *recorder) keep(o *outcome) {
	if r.omitted {
		return
	}
	r.size += int64(len(o.messages[0].GetValue()))
	if r.size > r.limit {
		r.omitted, r.outcome = true, outcome{}
		return
	}
	r.outcome.messages = append(r.outcome.messages, o.messages...)
}

// sendGrace is how long sending may still take once the execution's context has ended.
const sendGrace = time.Second

var errStuck = status.Error(codes.DeadlineExceeded, "idemgrpc: the client does not read")

// pass sends a message. The flow control of HTTP/2 blocks it if the client does not read,
// and the blocked handler holds the key and delays a shutdown. So once the context of the
// execution has ended, such a client counts as gone after sendGrace. The blocked send ends
// with the call.
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
	select {
	case err := <-sent:
		return err
	case <-time.After(sendGrace):
		r.stuck = true
		return errStuck
	}
}

// gone reports whether an error means a lost client.
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
