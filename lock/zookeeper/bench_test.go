package zookeeper

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// BenchmarkAcquireRelease takes and gives back locks of different keys: ns/op
// is the wall time per pair, so 1e9 divided by it are the pairs a second.
func BenchmarkAcquireRelease(b *testing.B) {
	for _, callers := range []int{1, 64, 256} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			cfg := sharedConfig(b)
			cfg.SessionTimeout = 60 * time.Second
			l := open(b, cfg).Locker()
			ctx := bounded(b)
			for i := range 4096 { // the parents, which are made only once
				id := newID()
				id[0], id[1] = byte(i>>4), byte(i<<4)
				lease, err := l.TryAcquire(ctx, request(id))
				if err != nil {
					b.Fatal(err)
				}
				lease.ReleaseBehind()
			}
			await(b, "releases", l.c.background.idle())
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
		})
	}
}
