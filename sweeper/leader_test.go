package sweeper_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// partlyAway is a lock service of which the part with some locks is away.
type partlyAway struct {
	driver.Locker

	mu   sync.Mutex
	away int                  // how many of the locks that are asked for one after the other
	nth  map[driver.KeyID]int // of the locks
}

func (l *partlyAway) lose(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = n
}

func (l *partlyAway) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	l.mu.Lock()
	n, known := l.nth[req.KeyID]
	if !known {
		n = len(l.nth)
		l.nth[req.KeyID] = n
	}
	away := n < l.away
	l.mu.Unlock()
	if away {
		return nil, driver.ErrUnavailable
	}
	return l.Locker.TryAcquire(ctx, req)
}

// The lock of the leader is at a server that is away, and the other servers work. One instance leads all the
// same. When the server is back, the first lock decides again.
func TestLeaderWhoseLockIsAway(t *testing.T) {
	for _, away := range []int{1, 3} {
		synctest.Test(t, func(t *testing.T) {
			l := &partlyAway{Locker: memorylock.New(), away: away, nth: map[driver.KeyID]int{}}
			first := driver.LockRequest{KeyID: idem.NewKeyID("idemkeeper sweeper", "s"), Nonce: driver.NewNonce()}
			lead := sweeper.ByLock(l, "s")
			ctx, cancel := context.WithCancel(t.Context())
			var leading, most, terms atomic.Int64
			var instances sync.WaitGroup
			for range 3 {
				instances.Go(func() {
					for ctx.Err() == nil {
						err := lead(ctx, func(ctx context.Context) error {
							terms.Add(1)
							most.Store(max(most.Load(), leading.Add(1)))
							defer leading.Add(-1)
							<-ctx.Done()
							return context.Cause(ctx)
						})
						if err != nil && ctx.Err() == nil {
							t.Errorf("lead() = %v", err)
						}
					}
				})
			}
			time.Sleep(time.Hour)
			if terms.Load() == 0 || most.Load() != 1 {
				t.Errorf("%d terms, and %d leaders at once, want some and 1", terms.Load(), most.Load())
			}
			l.lose(0)
			time.Sleep(2 * time.Minute)
			if _, err := l.Locker.TryAcquire(ctx, first); !errors.Is(err, driver.ErrLocked) || leading.Load() != 1 {
				t.Errorf("TryAcquire() of the first lock = %v, and %d lead, want %v and 1", err, leading.Load(), driver.ErrLocked)
			}
			cancel()
			instances.Wait()
		})
	}
}
