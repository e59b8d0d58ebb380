package idemgrpc_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// hedge is the hedging policy of gRFC A6, which grpc-go does not have: three attempts, 50 ms apart.
// The first status that is not listed as non-fatal ends the call and cancels its other attempts.
func (b *bundle) hedge(ctx context.Context, nonFatal ...codes.Code) answer {
	const attempts, delay = 3, 50 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer, attempts)
	next := time.NewTicker(delay)
	defer next.Stop()
	sent, answered := 0, 0
	send := func() {
		sent++
		go func() { answers <- b.send(ctx, usual()) }()
	}
	send()
	for {
		tick := next.C
		if sent == attempts {
			tick = nil
		}
		select {
		case <-tick:
			send()
		case a := <-answers:
			answered++
			if !slices.Contains(nonFatal, status.Code(a.err)) || answered == attempts {
				return a
			}
		}
	}
}

// seen counts the events of a type.
func (b *bundle) seen(want telemetry.EventType) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, ev := range b.events {
		if ev.Type == want {
			n++
		}
	}
	return n
}

func TestHedgedCallRunsOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wait     time.Duration
		nonFatal []codes.Code
		waiting  bool                 // attempts go through the client interceptor
		lasts    func(b *bundle) bool // the handler ends when this is true; nil: when the caller has its answer
		refused  bool
	}{
		"a duplicate is refused":       {refused: true},
		"duplicates wait":              {wait: patience, lasts: func(b *bundle) bool { return b.seen(telemetry.EventJoined) >= 2 }},
		"ABORTED is no answer":         {nonFatal: []codes.Code{codes.Aborted}, lasts: func(b *bundle) bool { return b.seen(telemetry.EventRefused) >= 2 }},
		"the client interceptor waits": {waiting: true, lasts: func(b *bundle) bool { return b.seen(telemetry.EventRefused) >= 2 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.policy.DuplicateWait = tt.wait
			if tt.waiting {
				b.dial = []grpc.DialOption{grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(idemgrpc.WithKeysHonoured()))}
			}
			release, ended := make(chan struct{}), make(chan error, 1)
			b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
				<-release
				ended <- ctx.Err()
				return &walletv1.TransferResponse{Id: "t1", Amount: req.GetAmount()}, nil
			}
			b.start()
			if tt.lasts != nil {
				go func() {
					defer close(release)
					b.eventually("enough duplicates", func() bool { return tt.lasts(b) })
				}()
			}
			a := b.hedge(b.withKeys("k1"), tt.nonFatal...)
			if tt.lasts == nil {
				close(release)
			}
			if tt.refused {
				b.wantRefusal(a.err, idem.CodeInProgress)
			} else {
				b.wantPaid(a, a.replayed())
			}
			if err := receive(t, "the end of the handler", ended); err != nil {
				t.Errorf("the handler's context = %v, want it alive", err)
			}
			b.eventually("a stored outcome", func() bool { return b.seen(telemetry.EventCompleted) == 1 })
			var repeat answer
			b.eventually("the end of the first request", func() bool {
				repeat = b.pay("k1")
				code, _ := idemgrpc.CodeOf(repeat.err)
				return code != idem.CodeInProgress
			})
			b.wantPaid(repeat, true)
			b.wantRuns(1)
		})
	}
}

// arrivals notes what the attempts of calls bring to the server.
type arrivals struct {
	mu       sync.Mutex
	keys     []string
	previous []string // attempts of the same call, as grpc-go counts them
	times    []time.Time
}

func (r *arrivals) note(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	r.mu.Lock()
	r.keys = append(r.keys, strings.Join(metadata.ValueFromIncomingContext(ctx, "idempotency-key"), "+"))
	r.previous = append(r.previous, strings.Join(metadata.ValueFromIncomingContext(ctx, "grpc-previous-rpc-attempts"), "+"))
	r.times = append(r.times, time.Now())
	r.mu.Unlock()
	return next(ctx, req)
}

// retryPolicy repeats soon, unless the server asks for a longer pause. docs/around.md shows it.
const retryPolicy = `
{"methodConfig": [{"name": [{"service": "wallet.v1.WalletService"}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.1s", "maxBackoff": "5s", "backoffMultiplier": 2,
	"retryableStatusCodes": ["UNAVAILABLE", "ABORTED"]}}]}
`

// The retry policy of a service config repeats with the key of the call and after the pause that a
// refusal asks for, also beneath the client interceptor.
func TestRetryPolicyOfGRPC(t *testing.T) {
	t.Parallel()
	type transfer = func(context.Context, *walletv1.TransferRequest) (*walletv1.TransferResponse, error)
	for name, tt := range map[string]struct {
		prepare  func(b *bundle)
		transfer func(b *bundle) transfer
		running  bool // another call with the key runs until the first refusal
		code     codes.Code
		pause    time.Duration // between the two attempts, at least
		replayed bool
	}{
		"the first call still runs": {running: true, pause: time.Second, replayed: true, transfer: func(b *bundle) transfer {
			return func(_ context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
				b.eventually("a refusal", func() bool { return b.seen(telemetry.EventRefused) >= 1 })
				return &walletv1.TransferResponse{Id: "t1", Amount: req.GetAmount()}, nil
			}
		}},
		"the store was away": {pause: time.Second, prepare: func(b *bundle) { b.store.FailBefore("Get", 1, errDown) }},
		"the bank was away": {code: codes.FailedPrecondition, transfer: func(*bundle) transfer {
			return func(context.Context, *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
				return nil, status.Error(codes.Unavailable, "no answer from the bank")
			}
		}},
	} {
		for by, interceptor := range map[string]bool{"alone": false, "beneath the interceptor": true} {
			t.Run(name+"/"+by, func(t *testing.T) {
				t.Parallel()
				b, at := setup(t), &arrivals{}
				b.before = []grpc.UnaryServerInterceptor{at.note}
				b.dial = []grpc.DialOption{grpc.WithDefaultServiceConfig(retryPolicy)}
				if interceptor {
					b.dial = append(b.dial, grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor()))
				}
				if tt.transfer != nil {
					b.wallet.transfer = tt.transfer(b)
				}
				if tt.prepare != nil {
					tt.prepare(b)
				}
				b.start()
				keys := []string{"k1"}
				if interceptor && !tt.running {
					keys = nil // the interceptor makes one
				}
				first := make(chan answer, 1)
				if tt.running {
					go func() { first <- b.pay("k1") }()
					b.eventually("a start", func() bool { return b.wallet.runs.Load() == 1 })
				}
				a := b.pay(keys...)
				if tt.running {
					b.wantPaid(receive(t, "the first call", first), false)
					at.keys, at.previous, at.times = at.keys[1:], at.previous[1:], at.times[1:]
				}
				if tt.code == codes.OK {
					b.wantPaid(a, tt.replayed)
				} else if status.Code(a.err) != tt.code || a.replayed() != tt.replayed {
					t.Errorf("Transfer() = %v (replayed %v), want %v (replayed %v)", a.err, a.replayed(), tt.code, tt.replayed)
				}
				if !slices.Equal(at.previous, []string{"", "1"}) {
					t.Fatalf("previous attempts = %q, want one repeat by the retry policy", at.previous)
				}
				if at.keys[0] == "" || at.keys[0] != at.keys[1] {
					t.Errorf("keys = %q, want one key in both attempts", at.keys)
				}
				if pause := at.times[1].Sub(at.times[0]); pause < tt.pause {
					t.Errorf("the repeat came after %v, want at least %v", pause, tt.pause)
				}
				b.wantRuns(1)
			})
		}
	}
}
