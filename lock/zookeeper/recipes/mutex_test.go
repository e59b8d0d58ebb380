package recipes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Many callers of several clients have the lock one at a time, in the order of
// their places, which is that of their fences.
func TestMutexExcludesAndIsFair(t *testing.T) {
	t.Parallel()
	const callers, rounds = 8, 5
	var inside atomic.Int64
	var last atomic.Uint64
	var wg sync.WaitGroup
	for _, c := range crowd(t, 3) {
		m := MustNewMutex(c, "/app/m")
		for range callers {
			wg.Go(func() {
				for range rounds {
					lease, err := m.Acquire(bounded(t))
					if err != nil {
						t.Errorf("Acquire() = %v", err)
						return
					}
					if inside.Add(1) != 1 {
						t.Error("two have the lock")
					}
					if f := lease.Fence().Token; last.Swap(f) >= f {
						t.Errorf("fence %d after a greater one", f)
					}
					if _, err := m.Participants(bounded(t)); err != nil { // long enough for another holder to be seen
						t.Errorf("Participants() = %v", err)
					}
					inside.Add(-1)
					if err := lease.Release(bounded(t)); err != nil {
						t.Errorf("Release() = %v", err)
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestMutexTryAcquire(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	a, b := MustNewMutex(c[0], "/m"), MustNewMutex(c[1], "/m")
	lease, err := a.TryAcquire(bounded(t))
	if err != nil {
		t.Fatalf("TryAcquire() = %v, want the lock", err)
	}
	for _, m := range []*Mutex{a, b} {
		if l, err := m.TryAcquire(bounded(t)); !errors.Is(err, driver.ErrLocked) {
			t.Fatalf("TryAcquire() of a held lock = %v, %v, want ErrLocked", l, err)
		}
	}
	if err := lease.Release(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if lease, err = b.TryAcquire(bounded(t)); err != nil {
		t.Fatalf("TryAcquire() of a free lock = %v", err)
	}
	lease.ReleaseInBackground()
}

// A cancelled Acquire leaves no place behind, and those behind it move up.
func TestMutexAcquireCancelled(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	held, err := MustNewMutex(c[0], "/m").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(bounded(t))
	gaveUp := errors.New("gave up")
	second, third := make(chan error, 1), make(chan *Lease, 1)
	waiting := func(n int) {
		t.Helper()
		until(t, "waiters", func() bool {
			names, _, _ := raw.Children(clientOf(c[0]).Chroot + "/m")
			return len(names) == n
		})
	}
	go func() {
		_, err := MustNewMutex(c[1], "/m").Acquire(ctx)
		second <- err
	}()
	waiting(2)
	go func() {
		l, err := MustNewMutex(c[0], "/m").Acquire(bounded(t))
		if err != nil {
			t.Error(err)
		}
		third <- l
	}()
	waiting(3)
	until(t, "the second to wait for its turn", func() bool {
		return watchesOf(c[1]) > 0
	})
	cancel(gaveUp)
	if err := <-second; !errors.Is(err, driver.ErrLocked) || !errors.Is(err, gaveUp) {
		t.Errorf("Acquire() = %v, want ErrLocked and %v", err, gaveUp)
	}
	waiting(2)
	held.ReleaseInBackground()
	if l := <-third; l != nil {
		l.ReleaseInBackground()
	}
}

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
