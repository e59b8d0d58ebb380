package payments_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// pinged is a ledger that answers a ping when it is told to.
type pinged struct {
	payments.Ledger
	pings   atomic.Int64
	running atomic.Int64
	crowded atomic.Bool // two pings ran at a time
	answer  chan error
}

func (l *pinged) Ping(ctx context.Context) error {
	l.pings.Add(1)
	if l.running.Add(1) > 1 {
		l.crowded.Store(true)
	}
	defer l.running.Add(-1)
	select {
	case err := <-l.answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// However many ask at once, one check runs at a time, and each caller gets its answer.
func TestOneReadinessCheckAtATime(t *testing.T) {
	t.Parallel()
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close(context.Background())
	l := &pinged{answer: make(chan error)}
	ready := payments.NewReadiness(engine, l)
	const callers = 50
	var asking atomic.Int64
	var wg sync.WaitGroup
	failed := errors.New("the ledger is gone")
	for range callers {
		wg.Go(func() {
			asking.Add(1)
			if err := ready.Check(t.Context()); !errors.Is(err, failed) {
				t.Errorf("Check() = %v, want %v", err, failed)
			}
		})
	}
	for deadline := time.Now().Add(20 * time.Second); asking.Load() < callers || l.pings.Load() == 0; {
		if time.Now().After(deadline) {
			t.Fatal("not every caller asks")
		}
	}
	ended, leave := context.WithCancel(t.Context())
	leave()
	if err := ready.Check(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("Check() of a caller that has left = %v, want %v", err, context.Canceled)
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for waiting := true; waiting; { // a caller that came late begins another check
		select {
		case l.answer <- failed:
		case <-done:
			waiting = false
		}
	}
	if n := l.pings.Load(); n > callers/2 || l.crowded.Load() {
		t.Errorf("%d callers at once made %d checks, two at a time: %t", callers, n, l.crowded.Load())
	}
	go func() { l.answer <- nil }()
	if err := ready.Check(t.Context()); err != nil {
		t.Errorf("Check() = %v when all is well again", err)
	}
}
