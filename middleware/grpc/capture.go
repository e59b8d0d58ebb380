package idemgrpc

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

var errHeaderSent = errors.New("idemgrpc: the header has been sent")

// capture keeps the metadata that a handler sets, through its context or its
// stream, until the engine has settled the outcome. It is safe for concurrent
// use.
type capture struct {
	method string
	// send sends the header of a stream, which cannot wait for the outcome. nil
	// for a unary call.
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
func (c *capture) SetHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return errHeaderSent
	}
	c.header = metadata.Join(c.header, md)
	return nil
}

// SendHeader adds to the header, and sends it where the answer is a stream.
func (c *capture) SendHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return errHeaderSent
	}
	c.header = metadata.Join(c.header, md)
	return c.flushLocked()
}

// SetTrailer adds to the trailer.
func (c *capture) SetTrailer(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trailer = metadata.Join(c.trailer, md)
	return nil
}

// flush sends the header unless it was sent.
func (c *capture) flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return nil
	}
	return c.flushLocked()
}

func (c *capture) flushLocked() error {
	c.sent = true
	if c.send == nil {
		return nil
	}
	return c.send(c.header)
}

// started says that the header has been sent.
func (c *capture) started() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sent
}

// kept returns what was set, for good: the handler is through.
func (c *capture) kept() (header, trailer metadata.MD) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header, c.trailer
}

// put sets metadata of a unary answer. Errors are the connection's: there is
// nobody to tell, and the outcome is stored.
func put(ctx context.Context, header, trailer metadata.MD) {
	if len(header) > 0 {
		_ = grpc.SetHeader(ctx, header)
	}
	if len(trailer) > 0 {
		_ = grpc.SetTrailer(ctx, trailer)
	}
}
