package recipes

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// books are kept of the elements of a queue.
type books struct {
	mu      sync.Mutex
	offered map[string]bool // whether that was acknowledged
	removed map[string]int  // how often
	doubt   map[string]bool // it may have been removed
}

func newBooks() *books {
	return &books{offered: map[string]bool{}, removed: map[string]int{}, doubt: map[string]bool{}}
}

// trade offers an element, takes one, or receives one. It says whether that was
// answered.
func (b *books) trade(ctx context.Context, w *load, q *queue.Queue, rng *rand.Rand) bool {
	switch rng.IntN(4) {
	case 0:
		e, ok, err := q.Poll(ctx)
		if err == nil && ok {
			b.note(func() { b.removed[e.ID]++ })
		}
		return b.answered(ctx, w, err)
	case 1:
		d, err := q.TryReceive(ctx)
		if err != nil {
			return b.answered(ctx, w, err)
		}
		err = d.Ack(ctx)
		switch {
		case err == nil:
			b.note(func() { b.removed[d.ID]++ })
		case ctx.Err() != nil: // it goes on
			b.note(func() { b.doubt[d.ID] = true })
		}
		d.ReleaseInBackground() // where it was not acknowledged
		return b.answered(ctx, w, err)
	}
	id, err := q.Offer(ctx, []byte("element"))
	if err == nil {
		b.note(func() { b.offered[id] = true })
	}
	return b.answered(ctx, w, err)
}

func (b *books) note(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f()
}

// answered looks at the error of a call.
func (b *books) answered(ctx context.Context, w *load, err error) bool {
	doubt, ok := errors.AsType[*queue.InDoubtError](err)
	switch {
	case err == nil, errors.Is(err, queue.ErrEmpty):
		return true
	case ok && doubt.Op == "offer":
		b.note(func() {
			for _, e := range doubt.Elements {
				b.offered[e.ID] = false
			}
		})
	case ok:
		b.note(func() {
			for _, e := range doubt.Elements {
				b.doubt[e.ID] = true
			}
		})
	case ctx.Err() == nil && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrLeaseLost):
		w.t.Errorf("queue: %v", err)
	}
	return false
}

// close takes what is left, and balances the books: what was offered has been
// removed, once.
func (b *books) close(t *testing.T, q *queue.Queue) {
	t.Helper()
	until(t, "queue worked off", func() bool {
		e, ok, err := q.Poll(bounded(t))
		if ok {
			b.removed[e.ID]++
		}
		n, lenErr := q.Len(bounded(t))
		return err == nil && lenErr == nil && n == 0
	})
	for id, acknowledged := range b.offered {
		if b.removed[id] == 0 && acknowledged && !b.doubt[id] {
			t.Errorf("element %s was lost", id)
		}
	}
	for id, n := range b.removed {
		if _, ok := b.offered[id]; !ok {
			t.Errorf("element %s was never offered", id)
		}
		if n > 1 {
			t.Errorf("element %s was removed %d times", id, n)
		}
	}
	t.Logf("%d elements", len(b.removed))
}
