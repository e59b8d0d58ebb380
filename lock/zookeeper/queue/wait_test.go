package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Everybody who waits gets one element, and who gives up gets none.
func TestQueueTakeWaits(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	const waiters = 8
	ctx, cancel := context.WithCancelCause(bounded(t))
	gaveUp := errors.New("gave up")
	got, none := make(chan string, waiters), make(chan error, 2)
	var wg sync.WaitGroup
	for i := range 2 {
		q := MustNew(c[i], "/q")
		for range waiters / 2 {
			wg.Go(func() {
				e, err := q.Take(bounded(t))
				if err != nil {
					t.Errorf("Take() = %v", err)
				}
				got <- string(e.Data)
			})
		}
		// Its own path, so that it never gets anything.
		go func() {
			_, err := MustNew(c[i], "/other").Take(ctx)
			none <- err
		}()
	}
	for _, client := range c {
		until(t, "waiters", func() bool { return watches(client, clientOf(client).Chroot+"/q") })
		until(t, "waiters", func() bool { return watches(client, clientOf(client).Chroot+"/other") })
	}
	var want []string
	for i := range waiters {
		want = append(want, fmt.Sprint(i))
	}
	offer(t, MustNew(c[0], "/q"), want...)
	wg.Wait()
	close(got)
	all := slices.Sorted(func(yield func(string) bool) {
		for s := range got {
			if !yield(s) {
				return
			}
		}
	})
	if !slices.Equal(all, want) {
		t.Errorf("taken: %q, want %q", all, want)
	}
	cancel(gaveUp)
	for range 2 {
		if err := <-none; !errors.Is(err, ErrEmpty) || !errors.Is(err, gaveUp) {
			t.Errorf("Take() = %v, want ErrEmpty and %v", err, gaveUp)
		}
	}
}

// While another caller of this client tries to take an element, Poll does not know whether the
// element stays. It waits for the outcome instead of calling the queue empty.
func TestQueuePollWaitsForAnotherTrial(t *testing.T) {
	t.Parallel()
	c := crowd(t, 1)[0]
	q := MustNew(c, "/q")
	offer(t, q, "x")
	if _, err := q.Peek(bounded(t)); err != nil {
		t.Fatal(err)
	}
	known := q.elements(sessionOf(c))
	p, _, _ := known.pick()
	if p == nil {
		t.Fatal("pick() = nil, want the element")
	}
	type poll struct {
		e   Element
		ok  bool
		err error
	}
	polled := make(chan poll, 1)
	go func() {
		e, ok, err := q.Poll(bounded(t))
		polled <- poll{e, ok, err}
	}()
	select {
	case got := <-polled:
		t.Fatalf("Poll() = %q, %v, %v during another trial, want it to wait", got.e.Data, got.ok, got.err)
	case <-time.After(50 * time.Millisecond): // that nothing happens can only be waited for
	}
	known.free(*p, nil)
	if got := <-polled; got.err != nil || !got.ok || string(got.e.Data) != "x" {
		t.Errorf("Poll() = %q, %v, %v after a trial that failed, want the element", got.e.Data, got.ok, got.err)
	}
}

// counted counts how often its end is waited for.
type counted struct {
	context.Context
	waits atomic.Int64
}

func (c *counted) Done() <-chan struct{} {
	c.waits.Add(1)
	return c.Context.Done()
}

// A caller that waits for an element sends nothing, and does not spin.
func TestQueueTakeIsQuietWhileItWaits(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	seen := r.Proxy.Count(r.q.path)
	ctx := &counted{Context: bounded(t)}
	taken := make(chan error, 1)
	go func() { taken <- callTake(ctx, r.q) }()
	until(t, "the call waits", func() bool { return ctx.waits.Load() > 0 })
	select {
	case err := <-taken:
		t.Fatalf("Take() = %v, want it to wait", err)
	case <-time.After(50 * time.Millisecond): // that nothing happens can only be waited for
	}
	if waits, requests := ctx.waits.Load(), seen.Seen().Total(); waits > 10 || requests > 10 {
		t.Errorf("Take() waited %d times and made %d requests, want about 1", waits, requests)
	}
	offer(t, r.direct, "a")
	if err := <-taken; err != nil {
		t.Errorf("Take() = %v", err)
	}
}
