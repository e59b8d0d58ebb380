package idemgrpc_test

import (
	"context"
	"regexp"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

var honoured = idemgrpc.WithKeysHonoured()

// flaky answers calls one after the other, without a network, and notes the
// keys and times of attempts.
type flaky struct {
	errs     []error
	trailers []metadata.MD
	keys     []string
	times    []time.Duration
	began    time.Time
}

func (f *flaky) invoke(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	i := len(f.times)
	if i == 0 {
		f.began = time.Now()
	}
	f.keys = append(f.keys, md.Get("idempotency-key")...)
	f.times = append(f.times, time.Since(f.began))
	if i < len(f.trailers) {
		for _, o := range opts {
			if o, ok := o.(grpc.TrailerCallOption); ok {
				*o.TrailerAddr = f.trailers[i]
			}
		}
	}
	if i < len(f.errs) {
		return f.errs[i]
	}
	return nil
}

// call makes one call, in a bubble whose time costs nothing.
func (f *flaky) call(ctx context.Context, method string, opts ...idemgrpc.ClientOption) error {
	return idemgrpc.MustUnaryClientInterceptor(append(opts, honoured)...)(ctx, method, usual(), nil, nil, f.invoke)
}

func withDetails(code codes.Code, details ...protoadapt.MessageV1) error {
	s, err := status.New(code, "x").WithDetails(details...)
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func refusal(code idem.Code) error { return idemgrpc.RefusalStatus(idem.NewRefusal(code, nil)).Err() }

func TestClientRetries(t *testing.T) {
	t.Parallel()
	retryInfo := &errdetails.RetryInfo{RetryDelay: durationpb.New(7 * time.Second)}
	pushback := func(v ...string) metadata.MD { return metadata.MD{"grpc-retry-pushback-ms": v} }
	tests := []struct {
		name    string
		err     error
		trailer metadata.MD
		again   bool
		atLeast time.Duration
	}{
		{"unavailable", status.Error(codes.Unavailable, "x"), nil, true, 0},
		{"unavailable, as refused", refusal(idem.CodeUnavailable), nil, true, time.Second},
		{"ownership lost", refusal(idem.CodeOwnershipLost), nil, true, time.Second},
		{"in progress", refusal(idem.CodeInProgress), nil, true, time.Second},
		{"RetryInfo", withDetails(codes.Unavailable, retryInfo), nil, true, 7 * time.Second},
		{"pushback", status.Error(codes.Unavailable, "x"), pushback("3000"), true, 3 * time.Second},
		{"pushback and RetryInfo", withDetails(codes.Unavailable, retryInfo), pushback("3000"), true, 7 * time.Second},
		{"exhausted, with a time", withDetails(codes.ResourceExhausted, retryInfo), nil, true, 7 * time.Second},
		{"exhausted, with pushback", status.Error(codes.ResourceExhausted, "x"), pushback("0"), true, 0},

		{"exhausted", status.Error(codes.ResourceExhausted, "too large"), nil, false, 0},
		{"negative pushback", status.Error(codes.Unavailable, "x"), pushback("-1"), false, 0},
		{"unreadable pushback", status.Error(codes.Unavailable, "x"), pushback("soon"), false, 0},
		{"two pushbacks", status.Error(codes.Unavailable, "x"), pushback("1", "2"), false, 0},
		{"more time than there is", withDetails(codes.Unavailable, &errdetails.RetryInfo{RetryDelay: durationpb.New(time.Hour)}), nil, false, 0},
		{"aborted by somebody else", status.Error(codes.Aborted, "x"), nil, true, 0},
		{"aborted for another reason", withDetails(codes.Aborted, &errdetails.ErrorInfo{Domain: idemgrpc.Domain, Reason: "OTHER"}), nil, true, 0},
		{"in progress elsewhere", withDetails(codes.Aborted, &errdetails.ErrorInfo{Domain: "example.com", Reason: "IN_PROGRESS"}), nil, true, 0},
		{"outcome unknown", refusal(idem.CodeOutcomeUnknown), nil, false, 0},
		{"key reused", refusal(idem.CodeKeyReused), nil, false, 0},
		{"key expired", refusal(idem.CodeKeyExpired), nil, false, 0},
		{"result unavailable", refusal(idem.CodeResultUnavailable), nil, false, 0},
		{"key missing", refusal(idem.CodeKeyMissing), nil, false, 0},
		{"too many open", refusal(idem.CodeTooManyOpen), nil, true, time.Second},
		{"body too large", refusal(idem.CodeBodyTooLarge), nil, false, 0},
		{"not found", status.Error(codes.NotFound, "x"), nil, false, 0},
		{"unknown", status.Error(codes.Unknown, "x"), nil, true, 0},
		{"data loss", status.Error(codes.DataLoss, "x"), nil, true, 0},
		{"outcome unknown, with a time", withDetails(codes.FailedPrecondition, &errdetails.ErrorInfo{Domain: idemgrpc.Domain, Reason: "OUTCOME_UNKNOWN"}, retryInfo), nil, true, 7 * time.Second},
		{"internal", status.Error(codes.Internal, "x"), nil, true, 0},
		{"deadline", status.Error(codes.DeadlineExceeded, "x"), nil, true, 0},
		{"canceled", status.Error(codes.Canceled, "x"), nil, true, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{errs: []error{tt.err}, trailers: []metadata.MD{tt.trailer}}
				err := f.call(t.Context(), transferMethod)
				if (err == nil) != tt.again {
					t.Fatalf("call = %v after %d attempts, want it sent again: %v", err, len(f.times), tt.again)
				}
				if !tt.again {
					if len(f.times) != 1 {
						t.Errorf("%d attempts, want 1", len(f.times))
					}
					return
				}
				if len(f.keys) != 2 || f.keys[0] != f.keys[1] || f.keys[0] == "" {
					t.Errorf("keys %q, want one for both attempts", f.keys)
				}
				if d := f.times[1]; d < tt.atLeast || d > tt.atLeast+100*time.Millisecond {
					t.Errorf("second attempt after %v, want %v and up to 100 ms", d, tt.atLeast)
				}
			})
		})
	}
}

func TestClientBounds(t *testing.T) {
	t.Parallel()
	always := slices.Repeat([]error{status.Error(codes.Unavailable, "x")}, 1000)
	count := func(t *testing.T, timeout time.Duration, opts ...idemgrpc.ClientOption) (n int, took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if timeout > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, timeout)
				defer cancel()
			}
			f := &flaky{errs: always}
			if err := f.call(ctx, transferMethod, opts...); status.Code(err) != codes.Unavailable {
				t.Errorf("call = %v, want the last attempt's error", err)
			}
			n, took = len(f.times), time.Since(f.began)
		})
		return n, took
	}
	if n, took := count(t, 0); n >= 100 || took > time.Minute || took < 45*time.Second {
		t.Errorf("%d attempts in %v by default, want them to end with the minute", n, took)
	}
	if n, _ := count(t, 0, nil, idemgrpc.WithRetryElapsed(0)); n != 1 {
		t.Errorf("%d attempts, want 1", n)
	}
	if n, took := count(t, 0, idemgrpc.WithRetryElapsed(20*time.Second), idemgrpc.WithRetryBackoff(time.Second, time.Second)); took > 20*time.Second || n < 20 {
		t.Errorf("%d attempts in %v, want at least 20 within 20 s", n, took)
	}
	if _, took := count(t, 300*time.Millisecond); took >= 300*time.Millisecond {
		t.Errorf("gave up after %v, want it before the context's deadline", took)
	}
}

func TestClientStopsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		f := &flaky{errs: []error{withDetails(codes.Unavailable, &errdetails.RetryInfo{RetryDelay: durationpb.New(10 * time.Second)})}}
		if err := f.call(ctx, transferMethod); status.Code(err) != codes.Canceled || len(f.times) != 1 || time.Since(f.began) != time.Second {
			t.Errorf("call = %v after %d attempts and %v, want an end after 1 s", err, len(f.times), time.Since(f.began))
		}
	})
}

func TestClientKeys(t *testing.T) {
	t.Parallel()
	f := &flaky{}
	call := func(ctx context.Context, method string, opts ...idemgrpc.ClientOption) []string {
		f.keys = nil
		if err := f.call(ctx, method, opts...); err != nil {
			t.Errorf("call = %v", err)
		}
		return f.keys
	}
	first, second := call(t.Context(), transferMethod), call(t.Context(), transferMethod)
	uuid := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	if len(first) != 1 || !uuid.MatchString(first[0]) || slices.Equal(first, second) {
		t.Errorf("keys %q, %q, want two UUIDs", first, second)
	}
	own := metadata.AppendToOutgoingContext(t.Context(), "Idempotency-Key", "mine")
	if got := call(own, transferMethod); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("keys %q, want the caller's", got)
	}
	for _, service := range []string{"grpc.payments.v1.Payments", "grpc.Payments", "grpc.health.v1.HealthFund", "grpc.health.Payments", "grpc"} {
		if got := call(t.Context(), "/"+service+"/Do"); len(got) != 1 {
			t.Errorf("%s of an application has keys %q, want one", service, got)
		}
	}
	for _, method := range []string{balanceMethod, "/grpc.health.v1.Health/Check"} {
		if got := call(t.Context(), method); got != nil {
			t.Errorf("%s has keys %q, want none", method, got)
		}
	}
	if got := call(t.Context(), "/unknown.Service/Method"); len(got) != 1 {
		t.Errorf("keys %q of a method that is not described, want one", got)
	}
	f.times, f.errs = nil, []error{status.Error(codes.Unavailable, "x")}
	if err := f.call(t.Context(), balanceMethod); status.Code(err) != codes.Unavailable || len(f.times) != 1 {
		t.Errorf("call without a key = %v after %d attempts, want the error at once", err, len(f.times))
	}
	f.errs = nil
	all := idemgrpc.WithKeyedMethods(func(string) bool { return true })
	if got := call(t.Context(), balanceMethod, all); len(got) != 1 {
		t.Errorf("keys %q, want one", got)
	}
}

// A connection can break when the header of a stored outcome has come, and the
// outcome has not: what is told then is the connection's end, not the outcome.
func TestClientTakesNoBrokenReplayAsFinal(t *testing.T) {
	t.Parallel()
	b := setup(t)
	broken := 3
	b.dial = []grpc.DialOption{grpc.WithChainUnaryInterceptor(
		idemgrpc.MustUnaryClientInterceptor(honoured, idemgrpc.WithRetryBackoff(time.Millisecond, time.Millisecond)),
		func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, next grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if broken--; broken < 0 {
				return next(ctx, method, req, reply, cc, opts...)
			}
			for _, opt := range opts {
				if h, ok := opt.(grpc.HeaderCallOption); ok {
					*h.HeaderAddr = metadata.Pairs(idemgrpc.ReplayedMetadataKey, "true")
				}
			}
			return status.Error(codes.Unavailable, "error reading from server: EOF")
		})}
	b.start()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b.wantPaid(b.send(ctx, usual()), false) // it asks for the header
	b.wantRuns(1)
}

func TestClientOptionsThatContradictThemselves(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]idemgrpc.ClientOption{
		"no back-off": idemgrpc.WithRetryBackoff(0, 0),
		"no time":     idemgrpc.WithRetryElapsed(-1),
		"no function": idemgrpc.WithKeyedMethods(nil),
		"bad name":    idemgrpc.WithMetadataKey("x-bin"),
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			idemgrpc.MustStreamClientInterceptor(opt)
		}()
	}
}
