package idemgrpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// UnaryClientInterceptor gives each call one key and sends it again if that is safe and
// may help. That is after UNAVAILABLE, after ABORTED with the reason IN_PROGRESS, and after
// RESOURCE_EXHAUSTED if the server says when to come back. It waits as long as RetryInfo
// or grpc-retry-pushback-ms say, and for a random part of a back-off that doubles. It
// does not send again after any other answer, nor after a negative pushback, nor when the
// call's context has ended. An answer with idempotent-replayed is stored and will not change,
// so it is final.
//
// A key that the caller has put into the outgoing metadata is kept. Inside a handler that
// an [idem.Engine] runs, the key is derived from the operation and from the full name of
// the method ([idem.DownstreamKey]), so that the next attempt of the same operation sends
// the same key. Two different calls of one method from one handler therefore need a name
// each ([WithCallName]) or keys of their own. Otherwise the server takes the second for a
// repeat of the first, or refuses it. When that handler has returned, the interceptor
// sends nothing more that may have an effect, and returns [idem.ErrExecutionEnded].
// Outside of a handler the key is random.
//
// Calls without a key are handed on as they are. UnaryClientInterceptor panics on options
// that contradict themselves.
func UnaryClientInterceptor(opts ...ClientOption) grpc.UnaryClientInterceptor {
	return newClient(opts).unary
}

// StreamClientInterceptor does for server streams what [UnaryClientInterceptor] does for
// unary calls, until the caller has read a message or the header.
// From then on the caller gets every error. A caller who then starts over with the same
// key gets the recorded messages from the first on.
//
// Streams of requests get no key, because they cannot be made safe to retry.
func StreamClientInterceptor(opts ...ClientOption) grpc.StreamClientInterceptor {
	return newClient(opts).stream
}

func newClient(opts []ClientOption) *clientOptions {
	o := &clientOptions{retry: resend.Default(), metadataKey: DefaultMetadataKey, keyed: hasEffects}
	adapter.Apply(o, opts)
	if err := o.validate(); err != nil {
		panic(fmt.Errorf("idemgrpc: %w", err))
	}
	return o
}

func (o *clientOptions) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, ok, err := o.withKey(ctx, method)
	if err != nil {
		return err
	}
	if !ok {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	call := o.retry.Start()
	for {
		var trailer metadata.MD
		err := o.attempt(ctx, func(ctx context.Context) error {
			return invoker(ctx, method, req, reply, cc, append(slices.Clip(opts), grpc.Trailer(&trailer))...)
		})
		if err == nil {
			return nil
		}
		if err = wait(ctx, &call, err, trailer); err != nil {
			return err
		}
	}
}

// attempt sends the call once, for as long as an attempt may take.
func (o *clientOptions) attempt(ctx context.Context, send func(context.Context) error) error {
	limit := o.attemptTimeout
	if limit == 0 {
		return send(ctx)
	}
	started := time.Now()
	attempt, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := send(attempt)
	// The server knows of the deadline as well, and may answer shortly before it.
	over := time.Since(started) > limit-limit/50
	if status.Code(err) == codes.DeadlineExceeded && over && ctx.Err() == nil {
		return status.Error(codes.Unavailable, "idemgrpc: the attempt was not answered in time")
	}
	return err
}

// withKey returns the context of all attempts, with the key in its metadata. It returns
// false for a call without a key. After an error nothing may be sent.
func (o *clientOptions) withKey(ctx context.Context, method string) (context.Context, bool, error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	switch {
	case len(md.Get(o.metadataKey)) > 0:
		return ctx, true, resend.Gate(ctx)
	case !o.keyed(method) && hasEffects(method):
		return ctx, false, resend.Gate(ctx)
	case !o.keyed(method):
		return ctx, false, nil
	}
	name := ""
	if o.callName != nil {
		name = o.callName(ctx, method)
	}
	key, err := resend.Key(ctx, cmp.Or(name, method))
	if err != nil {
		return ctx, false, err
	}
	return metadata.AppendToOutgoingContext(ctx, o.metadataKey, key), true, nil
}

// wait pauses before the next attempt. It returns the error of the call if no attempt
// follows.
func wait(ctx context.Context, call *resend.Call, err error, trailer metadata.MD) error {
	asked, again := verdict(err, trailer)
	if !again {
		return err
	}
	if pause, again := call.Next(ctx, asked); again {
		err = resend.Wait(ctx, pause)
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// maxAsked keeps sums of durations from running over.
const maxAsked = 1000 * time.Hour

// verdict reads the answer to one attempt of a call with a key, and reports whether
// sending the call again may help. asked is the pause from the server.
func verdict(err error, trailer metadata.MD) (asked time.Duration, again bool) {
	if len(trailer.Get(ReplayedMetadataKey)) > 0 {
		return 0, false // stored: another attempt gets the same
	}
	told := false
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			asked, told = min(max(info.GetRetryDelay().AsDuration(), 0), maxAsked), true
			break
		}
	}
	if values := trailer.Get(pushbackKey); len(values) > 0 {
		ms, err := strconv.ParseInt(values[0], 10, 64)
		if len(values) > 1 || err != nil || ms < 0 { // gRFC A6: an unreadable value is a no
			return 0, false
		}
		asked, told = max(asked, time.Duration(min(ms, maxAsked.Milliseconds()))*time.Millisecond), true
	}
	switch status.Code(err) {
	case codes.Unavailable:
		return asked, true
	case codes.Aborted:
		code, _ := CodeOf(err)
		return asked, code == idem.CodeInProgress
	case codes.ResourceExhausted: // without a pause it may be a message that is too large
		return asked, told
	default:
		return 0, false
	}
}
