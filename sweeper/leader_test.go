package sweeper_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// The second leader decides and queues nothing twice.
func TestOneLeaderAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.StillUnknown()))
		for i := range 20 {
			b.interrupted(fmt.Sprint(i))
		}
		lead := sweeper.WithLead(sweeper.ByLock(b.locker, "s"))
		stops := []func(){b.run(lead), b.run(lead), b.run(lead)}
		for _, stop := range stops {
			time.Sleep(time.Minute)
			stop()
		}
		if b.inbox.size() != 20 {
			t.Errorf("%d cases, want 20", b.inbox.size())
		}
		if sum := b.sum(); sum.Failed != 0 || sum.Held != 0 {
			t.Errorf("leaders were in each other's way: %+v", sum)
		}
	})
}

// A partition can give two leaders. Each attempt is decided once.
func TestTwoLeadersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
			time.Sleep(10 * time.Millisecond)
			return idem.Applied(idem.Response{Status: 201, Body: []byte(in.Fence.String())}), nil
		})
		const n = 100
		for i := range n {
			b.interrupted(fmt.Sprint(i))
		}
		for range 4 {
			defer b.run()()
		}
		time.Sleep(30 * time.Second)
		if sum := b.sum(); sum.Applied != n {
			t.Errorf("%d decisions, want %d", sum.Applied, n)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		for id, times := range b.asked {
			if times != 1 {
				t.Errorf("%v was asked about %d times, want once", id, times)
			}
		}
	})
}

// Another instance can lead after that.
func TestLostLeadershipEndsTheTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memorylock.New()
		lead := sweeper.ByLock(l, "s")
		var terms atomic.Int64
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		term := func(ctx context.Context) error {
			if terms.Add(1) == 1 {
				l.Revoke(idem.NewKeyID("idemkeeper sweeper", "s"))
			}
			<-ctx.Done()
			return context.Cause(ctx)
		}
		if err := lead(ctx, term); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("lead() = %v, want ErrLeaseLost", err)
		}
		cancel()
		if err := lead(ctx, term); err == nil {
			t.Error("lead() = nil after its context had ended")
		}
	})
}

// A term goes on for a while after its end, and no other instance leads meanwhile.
func TestLeadershipIsKeptUntilTheTermHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := memorylock.New()
		ctx, cancel := context.WithCancel(t.Context())
		next := func(t *testing.T) error {
			t.Helper()
			lease, err := l.TryAcquire(t.Context(), driver.LockRequest{KeyID: idem.NewKeyID("idemkeeper sweeper", "s"), Nonce: driver.NewNonce()})
			if err == nil {
				lease.ReleaseInBackground()
			}
			return err
		}
		err := sweeper.ByLock(l, "s")(ctx, func(ctx context.Context) error {
			cancel()
			<-ctx.Done()
			synctest.Wait()
			if err := next(t); !errors.Is(err, driver.ErrLocked) {
				t.Errorf("TryAcquire() during the term = %v, want ErrLocked", err)
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
		if err := next(t); err != nil {
			t.Errorf("TryAcquire() after the term = %v", err)
		}
	})
}
