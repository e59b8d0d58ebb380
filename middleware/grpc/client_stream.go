package idemgrpc

import (
	"context"
	"errors"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

func (o *clientOptions) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, streamer grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	keyed, name := false, ""
	var err error
	if desc.ClientStreams {
		err = resend.Gate(ctx)
	} else {
		ctx, keyed, name, err = o.withKey(ctx, method, nil) // the request comes with SendMsg
	}
	if err != nil {
		return nil, err
	}
	open := func() (grpc.ClientStream, error) { return streamer(ctx, desc, cc, method, opts...) }
	if !keyed {
		return open()
	}
	s := &resentStream{ctx: ctx, options: o, name: name, open: open, call: o.retry.Start()}
	for {
		if s.current, err = open(); err == nil {
			return s, nil
		}
		if err = o.wait(ctx, &s.call, err, nil); err != nil {
			return nil, err
		}
	}
}

// resentStream is a server stream that starts over, with the same key and request, until
// the caller has read a part of the answer. As with every [grpc.ClientStream] one
// goroutine sends and one receives.
type resentStream struct {
	ctx     context.Context // of all attempts
	options *clientOptions
	name    string // of a derived key, or ""
	open    func() (grpc.ClientStream, error)
	call    resend.Call // of the receiving goroutine

	mu       sync.Mutex // guards the fields below
	current  grpc.ClientStream
	request  any  // nil until it was sent
	answered bool // a part of the answer has been read
}

var _ grpc.ClientStream = (*resentStream)(nil)

func (s *resentStream) stream() grpc.ClientStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// Header waits for the header. From then on the caller gets every error.
func (s *resentStream) Header() (metadata.MD, error) {
	s.mu.Lock()
	s.answered = true
	current := s.current
	s.mu.Unlock()
	return current.Header()
}

func (s *resentStream) Trailer() metadata.MD     { return s.stream().Trailer() }
func (s *resentStream) Context() context.Context { return s.stream().Context() }

// SendMsg sends the request and keeps a copy. A caller may use the message for its next
// call, and that call has another key.
func (s *resentStream) SendMsg(m any) error {
	if s.name != "" {
		if err := resend.Claim(s.ctx, s.name, hashOf(m)); err != nil {
			return err
		}
	}
	kept := m
	if messageOf(m) != nil {
		clone, err := cloneOf(m)
		if err != nil {
			return status.Errorf(codes.Internal, "idemgrpc: keeping a %T: %v", m, err)
		}
		kept = clone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.request = kept
	return s.current.SendMsg(m)
}

func (s *resentStream) CloseSend() error { return s.stream().CloseSend() }

// RecvMsg receives the next message. After an error in place of the first message it
// starts the stream over if that may help.
func (s *resentStream) RecvMsg(m any) error {
	for {
		current := s.stream()
		err := current.RecvMsg(m)
		if s.final(err) {
			return err
		}
		for trailer := current.Trailer(); err != nil; trailer = nil {
			if err = s.options.wait(s.ctx, &s.call, err, trailer); err != nil {
				return err
			}
			err = s.restart()
		}
	}
}

// final reports whether the caller is to see err, nil included.
func (s *resentStream) final(err error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil || errors.Is(err, io.EOF) {
		s.answered = true
	}
	return s.answered || s.request == nil
}

// restart opens the stream again and sends the request.
func (s *resentStream) restart() error {
	next, err := s.open()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = next
	if err := next.SendMsg(s.request); errors.Is(err, io.EOF) {
		return nil // the stream has ended, and RecvMsg tells how
	} else if err != nil {
		return err
	}
	return next.CloseSend()
}
