package idemgrpc

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// client is what both client interceptors share.
type client struct{ options clientOptions }

// UnaryClientInterceptor gives each call one key and sends it again where that
// is safe and may help: after UNAVAILABLE, after ABORTED with the reason
// IN_PROGRESS, and after RESOURCE_EXHAUSTED where the server says when to come
// back. It never does so after an answer that says idempotent-replayed: that is
// stored, and will not change. It waits as long as RetryInfo or grpc-retry-pushback-ms say, and for a
// random part of a back-off that doubles. It never sends again after anything
// else, after a negative pushback, or when the call's context has ended.
//
// A key that the caller has put into the outgoing metadata is kept. Inside a
// handler that an [idem.Engine] runs, the key is derived from the operation and
// from the full name of the method ([idem.DownstreamKey]), so that the next
// attempt of the same operation sends the same key. Two different calls of one
// method from one handler therefore need a name each ([WithCallName]) or keys of
// their own: the server would take the second for a repeat of the first, or
// refuse it. Once that handler has returned nothing that may have an effect is
// sent any more: the error is [idem.ErrExecutionEnded]. Elsewhere the key is
// random.
//
// Calls without a key are handed on as they are. It panics on options that
// contradict themselves, at start and never later.
func UnaryClientInterceptor(opts ...ClientOption) grpc.UnaryClientInterceptor {
	return newClient(opts).unary
}

// StreamClientInterceptor does for server streams what
// [UnaryClientInterceptor] does for unary calls, as long as nothing of the
// answer has been read: once there is a message, or the header was asked for,
// an error is the caller's. A caller who then starts over with the same key
// gets the recorded messages from the first on.
//
// Streams of requests get no key, since they cannot be made safe to retry.
func StreamClientInterceptor(opts ...ClientOption) grpc.StreamClientInterceptor {
	return newClient(opts).stream
}

func newClient(opts []ClientOption) *client {
	c := &client{options: defaultClientOptions()}
	for _, opt := range opts {
		if opt != nil {
			opt(&c.options)
		}
	}
	if err := c.options.validate(); err != nil {
		panic(fmt.Errorf("idemgrpc: %w", err))
	}
	return c
}

func (c *client) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, ok, err := c.withKey(ctx, method)
	if err != nil {
		return err
	}
	if !ok {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	call := c.options.retry.Start()
	for {
		var trailer metadata.MD
		err := c.attempt(ctx, method, req, reply, cc, invoker, append(slices.Clip(opts), grpc.Trailer(&trailer))...)
		if err == nil {
			return nil
		}
		if err = c.wait(ctx, &call, err, trailer); err != nil {
			return err
		}
	}
}

// attempt sends the call once.
func (c *client) attempt(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if c.options.attemptTimeout == 0 {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	attempt, cancel := context.WithTimeout(ctx, c.options.attemptTimeout)
	defer cancel()
	err := invoker(attempt, method, req, reply, cc, opts...)
	// The server knows of the deadline as well, and may say so first. One that
	// means a deadline of its own, by chance at that moment, is asked again.
	deadline, _ := attempt.Deadline()
	over := time.Until(deadline) < c.options.attemptTimeout/50
	if status.Code(err) == codes.DeadlineExceeded && over && ctx.Err() == nil {
		return status.Error(codes.Unavailable, "idemgrpc: the attempt was not answered in time")
	}
	return err
}

// withKey returns the context of all attempts, with the key in its metadata. It
// is false for a call that has none. After an error nothing may be sent.
func (c *client) withKey(ctx context.Context, method string) (context.Context, bool, error) {
	o := &c.options
	if md, ok := metadata.FromOutgoingContext(ctx); ok && len(md.Get(o.metadataKey)) > 0 {
		return ctx, true, gate(ctx)
	}
	if !o.keyed(method) {
		if hasEffects(method) {
			return ctx, false, gate(ctx)
		}
		return ctx, false, nil
	}
	name := ""
	if o.callName != nil {
		name = o.callName(ctx, method)
	}
	if name == "" {
		name = method
	}
	key, err := resend.Key(ctx, name)
	if err != nil {
		return ctx, false, notSent(err)
	}
	return metadata.AppendToOutgoingContext(ctx, o.metadataKey, key), true, nil
}

// gate notes that a call may have an effect.
func gate(ctx context.Context) error { return notSent(resend.Gate(ctx)) }

// notSent is the error of a call whose execution has ended.
func notSent(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("idemgrpc: nothing was sent: %w", err)
}

// wait pauses before the next attempt. It returns the error of the call where
// there is to be none.
func (c *client) wait(ctx context.Context, call *resend.Call, err error, trailer metadata.MD) error {
	asked, again := verdict(err, trailer)
	if !again {
		return err
	}
	pause, again := call.Next(ctx, asked)
	if again && resend.Sleep(ctx, pause) == nil {
		return gate(ctx)
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// maxAsked keeps sums of durations from running over.
const maxAsked = 1000 * time.Hour
