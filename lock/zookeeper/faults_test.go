package zookeeper

import (
	"context"
	"errors"
	"math/rand/v2"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Locks of many keys are taken, given up and given back at once, while
// connections break and replies are lost. No key ever has two holders, and
// nothing is left behind.
func TestLocksUnderFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	second := open(t, r.cfg)
	lockers := []*Locker{r.l, second.Locker(), r.other}
	type key struct {
		id     driver.KeyID
		inside atomic.Int32
		last   atomic.Uint64
	}
	keys := make([]key, 8)
	for i := range keys {
		keys[i].id = r.sibling()
	}
	const goroutines, faults, enough = 48, 20, 400
	ctx, cancel := context.WithTimeout(context.Background(), 4*patience)
	defer cancel()
	var work sync.WaitGroup
	var taken atomic.Int64
	for i := range goroutines {
		work.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			for ctx.Err() == nil {
				k := &keys[rng.IntN(len(keys))]
				limit := time.Duration(1+rng.IntN(200)) * time.Millisecond
				if rng.IntN(4) == 0 {
					limit = patience // a busy machine takes few locks within the others
				}
				try, stop := context.WithTimeout(ctx, limit)
				lease, err := driver.Acquire(try, lockers[i%3], request(k.id))
				stop()
				if err != nil {
					time.Sleep(time.Millisecond) // not connected, or given up
					continue
				}
				taken.Add(1)
				if n := k.inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				if token := lease.Fence().Token; k.last.Swap(token) >= token {
					t.Errorf("fence %d does not grow", token)
				}
				if _, err := lease.Check(ctx); err != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("Check() = %v", err)
				}
				k.inside.Add(-1)
				if rng.IntN(2) == 0 {
					lease.ReleaseInBackground()
				} else if err := lease.Release(bounded(t)); err != nil {
					t.Errorf("Release() = %v", err)
				}
			}
		})
	}
	for i := 0; ctx.Err() == nil && (i < faults || taken.Load() < enough); i++ {
		onLocks := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.cfg.Root))
		var happened <-chan struct{}
		switch i % 3 {
		case 0:
			happened = r.proxy.DropNextReply(onLocks)
		case 1:
			happened = r.proxy.DropNextRequest(onLocks)
		case 2:
			r.proxy.Cut()
		}
		select {
		case <-happened:
		case <-time.After(150 * time.Millisecond):
		}
		for ctx.Err() == nil && r.l.Ping(ctx) != nil {
			time.Sleep(time.Millisecond)
		}
	}
	cancel()
	work.Wait()
	r.proxy.Restore()
	for _, c := range []*Client{r.c, second, r.other.c} {
		until(t, "connected", func() bool { return c.Locker().Ping(bounded(t)) == nil })
		r.idle(c)
	}
	children, _, err := r.raw.Children(path.Dir(r.path))
	if err != nil || len(children) > 0 {
		t.Errorf("left behind: %v, %v", children, err)
	}
	if taken.Load() < goroutines {
		t.Errorf("%d locks taken, the test tests little", taken.Load())
	}
}
