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

	"github.com/idemkeeper/idemkeeper/idem"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

var errHeaderSent = errors.New("idemgrpc: the header has been sent")

// answer keeps what one run of a handler answers until the engine has settled the outcome. As
// the transport stream of the handler's context it takes the handler's metadata, and is safe
// for concurrent use.
type answer struct {
	method string
	// send sends the header of a stream that does not wait for the outcome. It is nil for
	// a unary call and for a stream that is held.
	send func(metadata.MD) error

	mu      sync.Mutex // guards the metadata
	header  metadata.MD
	trailer metadata.MD
	sealed  bool // the handler has sent the header, as far as it knows

	outcome idemkeeperv1.Outcome
	size    int64 // of the messages of a stream
	omitted bool  // the messages are over the limit and are not kept
	stuck   bool  // the client does not read and gets no more messages

	held []any // messages that the client gets once the transaction has committed
	lost bool  // they are over the limit of what is held
}

var _ grpc.ServerTransportStream = (*answer)(nil)

// Method returns the full name of the method.
func (a *answer) Method() string { return a.method }

// SetHeader adds to the header, until the header is sent.
func (a *answer) SetHeader(md metadata.MD) error { return a.addHeader(md, false) }

// SendHeader adds to the header. For a stream that is not held it sends the header at once.
func (a *answer) SendHeader(md metadata.MD) error { return a.addHeader(md, true) }

func (a *answer) addHeader(md metadata.MD, send bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.sealed {
		return errHeaderSent
	}
	a.header, a.sealed = joinUnmarked(a.header, md), send
	if send && a.send != nil {
		return a.send(a.header)
	}
	return nil
}

// SetTrailer adds to the trailer.
func (a *answer) SetTrailer(md metadata.MD) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trailer = joinUnmarked(a.trailer, md)
	return nil
}

// joinUnmarked joins metadata without the mark of a stored outcome. A handler that forwards the
// answer of another service may have that of a record there.
func joinUnmarked(to, md metadata.MD) metadata.MD {
	joined := metadata.Join(to, md)
	delete(joined, ReplayedMetadataKey)
	return joined
}

// metadata returns the metadata so far, and whether the client has the header. The maps
// do not change later.
func (a *answer) metadata() (header, trailer metadata.MD, sent bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.header, a.trailer, a.sealed && a.send != nil
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
	b, err := proto.Marshal(r.request)
	if messageOf(m) == nil {
		err = errNotProtobuf
	} else if err == nil {
		err = parse(b, m)
	}
	if err != nil {
		return status.Errorf(codes.Internal, "idemgrpc: receiving into a %T: %v", m, err)
	}
	r.request = nil
	return nil
}

// recorder is the stream of a server stream's handler. Messages pass through it to the
// client, and are kept up to the limit. In joined mode they wait in the answer, because
// COMMIT can still undo what they tell. As with every [grpc.ServerStream] one goroutine sends
// and one receives.
type recorder struct {
	received // from the client

	ctx    context.Context // the execution's, so it does not end with the client
	answer *answer
	policy *idem.Policy // with the limits of the messages
	joined bool
}

var _ grpc.ServerStream = (*recorder)(nil)

func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) SetHeader(md metadata.MD) error { return r.answer.SetHeader(md) }

// SendHeader sends the header at once, or holds it in joined mode. A lost client is no error.
func (r *recorder) SendHeader(md metadata.MD) error {
	err := r.answer.SendHeader(md)
	if r.gone(err) {
		return nil
	}
	return err
}

func (r *recorder) SetTrailer(md metadata.MD) { _ = r.answer.SetTrailer(md) }

// SendMsg sends a message to the client and keeps it. A lost client is no error while the
// messages are kept, because it will ask for them.
func (r *recorder) SendMsg(m any) error {
	packed, err := pack(m)
	if err != nil {
		return err
	}
	// Once the client has seen a message, no status may give the key back. A message that is
	// held is no call of another system.
	if err := resend.Gate(r.ctx); err != nil && (!r.joined || !errors.Is(err, idem.ErrUndeclared)) {
		return err
	}
	a, size := r.answer, int64(proto.Size(packed))
	if err = a.SendHeader(nil); err == nil || errors.Is(err, errHeaderSent) {
		if r.joined {
			err = r.hold(m, size)
		} else {
			err = r.pass(m)
		}
	}
	if err != nil && !r.gone(err) {
		return err
	}
	if a.size += size; a.size > r.policy.MaxResponseBody {
		a.omitted, a.outcome.Messages = true, nil
		return err
	}
	a.outcome.Messages = append(a.outcome.Messages, packed)
	return nil
}

// hold keeps a message until the outcome is settled, as a copy, because the handler may use its
// own again. Past the limit nothing is held, and the handler goes on to its COMMIT. Only a
// handler that would send for ever learns that its time is over.
func (r *recorder) hold(m any, size int64) error {
	a := r.answer
	if a.lost = a.size+size > r.policy.MaxResponseHeld; a.lost {
		a.held = nil
		return status.FromContextError(r.ctx.Err()).Err()
	}
	clone, err := cloneOf(m)
	if err != nil {
		return errBadMessage
	}
	a.held = append(a.held, clone)
	return nil
}

// rollBack drops the messages of a stream that has failed in joined mode. They tell of what its
// transaction has undone.
func (a *answer) rollBack() {
	a.held, a.outcome.Messages = nil, nil
	a.lost, a.omitted = false, false
}

// sendGrace is how long sending may still take once the execution's context has ended.
const sendGrace = time.Second

var errStuck = status.Error(codes.DeadlineExceeded, "idemgrpc: the client does not read")

// pass sends a message. The flow control of HTTP/2 blocks it if the client does not read,
// and the blocked handler holds the key and delays a shutdown. So once the context of the
// execution has ended, such a client counts as lost after sendGrace. The blocked send ends
// with the call.
func (r *recorder) pass(m any) error {
	if r.answer.stuck {
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
		r.answer.stuck = true
		return errStuck
	}
}

// gone reports whether an error means a lost client.
func (r *recorder) gone(err error) bool {
	switch status.Code(err) {
	case codes.OK:
		return false
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable:
		return true
	}
	return r.ServerStream.Context().Err() != nil
}
