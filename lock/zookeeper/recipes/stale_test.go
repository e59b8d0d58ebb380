package recipes

import (
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// A waiter in line, and the consumer of a queue, are asked the same.
func TestPlacesAndElementsAtAServerThatIsBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m, q := MustNewMutex(r.Client, "/m"), queue.MustNew(r.Client, "/q")
	for i := range 5 {
		want := fmt.Sprint(i)
		if _, err := q.Offer(bounded(t), []byte(want)); err != nil {
			t.Fatalf("Offer() = %v", err)
		}
		if e, err := q.Peek(bounded(t)); err != nil || string(e.Data) != want {
			t.Fatalf("Peek() = %q, %v; want %q", e.Data, err, want)
		}
		holder, err := MustNewMutex(r.Other, "/m").Acquire(bounded(t))
		if err != nil {
			t.Fatalf("Acquire() = %v", err)
		}
		waiter := make(chan error, 1)
		go func() {
			l, err := m.Acquire(bounded(t))
			if err == nil {
				err = l.Release(bounded(t))
			}
			waiter <- err
		}()
		until(t, "waiter in line", func() bool {
			all, err := MustNewMutex(r.Other, "/m").Participants(bounded(t))
			return err == nil && len(all) == 2
		})
		r.Proxy.Lag(func(testserver.Request) bool { return true })
		r.Proxy.Cut()
		e, err := q.Take(bounded(t))
		if err != nil || string(e.Data) != want {
			t.Fatalf("Take() = %q, %v; want %q", e.Data, err, want)
		}
		recipetest.Release(r, holder)
		if err := <-waiter; err != nil {
			t.Fatalf("the waiter's Acquire() = %v", err)
		}
		r.Proxy.Restore()
		until(t, "usable", func() bool { return r.Client.Locker().Ping(bounded(t)) == nil })
	}
}
