package idemgrpc

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// UnaryClientInterceptor gives each call one key. If you tell it that the server honours keys
// ([WithKeysHonoured]), it sends the call again with that key where this may help. That is
//
//   - after UNAVAILABLE, and after ABORTED with the reason IN_PROGRESS
//   - after any other code if the server says when to come back, as it does for an unknown
//     outcome on which a resolver works
//   - once after CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, any other ABORTED, INTERNAL and
//     DATA_LOSS. A second try learns what became of the first one.
//
// It waits as long as RetryInfo or grpc-retry-pushback-ms say, and for a random part of a
// back-off that doubles. It does not send again after any other answer, nor after a negative
// pushback, nor when the call's context has ended. An unknown outcome without a pause waits for a
// person. Do not take a new key for that operation, because it may have happened. An answer with
// idempotent-replayed is the outcome and does not change, so it is final.
//
// Most services ignore a key that they do not know, and a repeat there is a second payment. So
// without [WithKeysHonoured] each call is sent once. gRPC may still send it again by itself if a
// retry policy in its service config says so.
//
// A key that the caller has put into the outgoing metadata is kept. Inside a handler that
// an [idem.Engine] runs, the key is derived from the operation and from the full name of
// the method ([idem.DownstreamKeyFor]), so that the next attempt of the same operation sends
// the same key. Two different calls of one method from one handler therefore need a name
// each ([WithCallName]) or keys of their own. Otherwise the second call is not sent, and the
// error wraps [idem.ErrCallNameReused]. When that handler has returned, the interceptor
// sends nothing more that may have an effect, and returns [idem.ErrExecutionEnded].
// Outside of a handler the key is random.
//
// Calls without a key are handed on as they are. The call's context ends an attempt at a server that
// hangs, and so does an interceptor behind this one that sets a deadline for each attempt.
//
// The error is for options that contradict themselves.
func UnaryClientInterceptor(opts ...ClientOption) (grpc.UnaryClientInterceptor, error) {
	o, err := newClient(opts)
	if err != nil {
		return nil, err
	}
	return o.unary, nil
}

// MustUnaryClientInterceptor is [UnaryClientInterceptor] for known-good wiring. Like
// [regexp.MustCompile] it panics where that returns an error.
func MustUnaryClientInterceptor(opts ...ClientOption) grpc.UnaryClientInterceptor {
	return adapter.Must(UnaryClientInterceptor(opts...))
}

// StreamClientInterceptor does for server streams what [UnaryClientInterceptor] does for
// unary calls, until the caller has read a message or the header.
// From then on the caller gets every error. A caller who then starts over with the same
// key gets the recorded messages from the first on.
//
// Streams of requests get no key, because they cannot be made safe to retry.
func StreamClientInterceptor(opts ...ClientOption) (grpc.StreamClientInterceptor, error) {
	o, err := newClient(opts)
	if err != nil {
		return nil, err
	}
	return o.stream, nil
}

// MustStreamClientInterceptor is [StreamClientInterceptor], and panics where that returns an error.
func MustStreamClientInterceptor(opts ...ClientOption) grpc.StreamClientInterceptor {
	return adapter.Must(StreamClientInterceptor(opts...))
}

func newClient(opts []ClientOption) (*clientOptions, error) {
	o := &clientOptions{retry: resend.Default(), metadataKey: DefaultMetadataKey, keyed: hasEffects}
	adapter.Apply(o, opts)
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("idemgrpc: %w", err)
	}
	return o, nil
}

func (o *clientOptions) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, ok, _, err := o.withKey(ctx, method, func() ([sha256.Size]byte, error) { return hashOf(req), nil })
	if err != nil {
		return err
	}
	if !ok {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	call := o.retry.Start()
	for {
		var trailer metadata.MD
		err := invoker(ctx, method, req, reply, cc, append(slices.Clip(opts), grpc.Trailer(&trailer))...)
		if err == nil {
			return nil
		}
		if err = o.wait(ctx, &call, err, trailer); err != nil {
			return err
		}
	}
}

// withKey returns the context of all attempts, with the key in its metadata. It returns
// false for a call without a key. name is that of a derived key. After an error nothing may be
// sent.
func (o *clientOptions) withKey(ctx context.Context, method string, request func() ([sha256.Size]byte, error)) (_ context.Context, keyed bool, name string, err error) {
	md, _ := metadata.FromOutgoingContext(ctx)
	switch {
	case len(md.Get(o.metadataKey)) > 0:
		return ctx, true, "", resend.Gate(ctx)
	case !o.keyed(method) && hasEffects(method):
		return ctx, false, "", resend.Gate(ctx)
	case !o.keyed(method):
		return ctx, false, "", nil
	}
	if o.callName != nil {
		name = o.callName(ctx, method)
	}
	name = cmp.Or(name, method)
	key, err := resend.Key(ctx, name, request)
	if err != nil {
		return ctx, false, "", err
	}
	return metadata.AppendToOutgoingContext(ctx, o.metadataKey, key), true, name, nil
}

// hashOf returns a hash of what tells a request message from another one.
func hashOf(req any) [sha256.Size]byte {
	msg := messageOf(req)
	if msg == nil {
		return resend.Incomparable()
	}
	bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
	if err != nil {
		return resend.Incomparable()
	}
	return sha256.Sum256(bytes)
}

// wait pauses before the next attempt. It returns the error of the call if no attempt
// follows.
func (o *clientOptions) wait(ctx context.Context, call *resend.Call, err error, trailer metadata.MD) error {
	advice := verdict(err, trailer)
	if !advice.Again || !o.honoured {
		return err
	}
	if pause, again := call.Next(ctx, advice); again {
		err = resend.Wait(ctx, pause)
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

// maxAsked keeps sums of durations from running over.
const maxAsked = 1000 * time.Hour

// verdict reads the answer to one attempt of a call with a key, and says whether sending the
// call again may help.
func verdict(err error, trailer metadata.MD) resend.Advice {
	if slices.Equal(trailer.Get(ReplayedMetadataKey), []string{adapter.Marker}) {
		return resend.Advice{} // the outcome, which does not change
	}
	asked, told := retryDelay(err)
	if values := trailer.Get(pushbackKey); len(values) > 0 {
		ms, err := strconv.ParseInt(values[0], 10, 64)
		if len(values) > 1 || err != nil || ms < 0 { // gRFC A6: an unreadable value is a no
			return resend.Advice{}
		}
		asked, told = max(asked, time.Duration(min(ms, maxAsked.Milliseconds()))*time.Millisecond), true
	}
	advice := resend.Advice{Again: told, Asked: asked}
	if told {
		return advice
	}
	switch status.Code(err) {
	case codes.Unavailable:
		advice.Again = true
	case codes.Aborted:
		code, _ := CodeOf(err)
		advice.Again, advice.Once = true, code != idem.CodeInProgress
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Internal, codes.DataLoss: // nothing is decided
		advice.Again, advice.Once = true, true
	}
	return advice
}
