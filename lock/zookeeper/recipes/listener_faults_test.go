package recipes

import (
	"context"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Whatever becomes of connections, sessions and those who wait, of every lease
// the listener hears that it was acquired, and then once that it ended; and the
// leases are told in the order of their fences.
func TestMutexTellsUnderFaults(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[Event]
	m := MustNewMutex(r.Client, "/m", WithListener(told.Take))
	ctx, stop := context.WithCancel(bounded(t))
	defer stop()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				l, err := m.Acquire(ctx)
				if err != nil {
					continue // given up
				}
				_, _ = l.Check(ctx)
				l.ReleaseInBackground()
			}
		})
	}
	onPlaces := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/m/"+exclusive+"-"))
	for i := range 6 {
		n := len(told.Events())
		switch i % 3 {
		case 0:
			await(t, "reply lost", r.Proxy.DropNextReply(onPlaces))
		case 1:
			r.Proxy.Cut()
		case 2:
			killSession(t, r.Client, r.Proxy)
		}
		told.Wait(t, n+20)
	}
	stop()
	wg.Wait()
	if err := r.Client.Close(bounded(t)); err != nil {
		t.Errorf("Close() = %v", err)
	}
	var last uint64
	open := make(map[uint64]bool)
	for _, ev := range told.Events() {
		f := ev.Fence.Token
		switch {
		case ev.State != Acquired && !open[f]:
			t.Errorf("%+v of a lease that is not held", ev)
		case ev.State != Acquired:
			open[f] = false
		case f <= last:
			t.Errorf("%+v after fence %d", ev, last)
		default:
			last, open[f] = f, true
		}
	}
	for f, held := range open {
		if held {
			t.Errorf("the end of lease %d was not told", f)
		}
	}
}
