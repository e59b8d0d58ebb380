package zookeeper

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// BenchmarkAcquireRelease takes and gives back locks of different keys: ns/op
// is the wall time per pair, so 1e9 divided by it are the pairs a second.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { benchmarkPairs(b, callers, nil) })
	}
}

// BenchmarkAcquireReleaseMarked leaves a marker in place of each lock.
func BenchmarkAcquireReleaseMarked(b *testing.B) {
	m := newMarker(driver.StateCompleted)
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { benchmarkPairs(b, callers, m) })
	}
}

func benchmarkPairs(b *testing.B, callers int, leave *driver.Marker) {
	cfg := sharedConfig(b)
	cfg.SessionTimeout = 60 * time.Second
	l := open(b, cfg).Locker(WithDurableMarkers())
	makeParents(b, l)
	turns := make(chan struct{})
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range turns {
				lease, err := l.TryAcquire(b.Context(), request(newID()))
				if err != nil {
					b.Error(err)
					continue
				}
				lease.(*Lease).MarkOnRelease(leave)
				if err := lease.Release(b.Context()); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		turns <- struct{}{}
	}
	close(turns)
	wg.Wait()
}

// makeParents takes a lock below each of the parents, which are made only once.
func makeParents(t testing.TB, l *Locker) {
	t.Helper()
	for i := range 4096 {
		id := newID()
		id[0], id[1] = byte(i>>4), byte(i<<4)
		lease, err := l.TryAcquire(bounded(t), request(id))
		if err != nil {
			t.Fatal(err)
		}
		lease.ReleaseInBackground()
	}
	await(t, "releases", l.c.core.Keeper.Background.Idle())
}
