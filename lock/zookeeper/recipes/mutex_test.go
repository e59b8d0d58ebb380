package recipes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// BenchmarkMutex is a hand-over on one path: waiters from four clients.
func BenchmarkMutex(b *testing.B) {
	for _, waiters := range []int{1, 64} {
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
			clients := crowd(b, 4)
			turns := make(chan struct{})
			var wg sync.WaitGroup
			for i := range waiters {
				m := MustNewMutex(clients[i%4], "/m")
				wg.Go(func() {
					for range turns {
						lease, err := m.Acquire(b.Context())
						if err != nil {
							b.Error(err)
							continue
						}
						lease.ReleaseInBackground()
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

// A lock that was just given back in the background is free for the one who gave
// it back, although its delete is still on its way. One that somebody else is in
// line for is not.
func TestTryAcquireRightAfterReleaseInBackground(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m, rw, sem := MustNewMutex(r.Client, "/m"), MustNewRWMutex(r.Client, "/rw"), MustNewSemaphore(r.Client, "/s", 2)
	for name, try := range map[string]func(context.Context) (*Lease, error){
		"mutex":     m.TryAcquire,
		"writer":    rw.TryAcquireWrite,
		"semaphore": func(ctx context.Context) (*Lease, error) { return sem.TryAcquire(ctx, 2) },
	} {
		for range 20 {
			l, err := try(bounded(t))
			if err != nil {
				t.Fatalf("%s: TryAcquire() right after ReleaseInBackground() = %v", name, err)
			}
			l.ReleaseInBackground()
		}
	}

	// The delete is on its way, and another client is next in line.
	l, err := m.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	next := make(chan *Lease, 1)
	go func() {
		got, err := MustNewMutex(r.Other, "/m").Acquire(bounded(t))
		if err != nil {
			t.Error(err)
		}
		next <- got
	}()
	until(t, "two in line", func() bool { return len(participants(t, m)) == 2 })
	l.ReleaseInBackground()
	if l, err := m.TryAcquire(bounded(t)); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() with another client in line = %v, %v, want %v", l, err, driver.ErrLocked)
	}
	releaseAll(t, []*Lease{<-next})
}
