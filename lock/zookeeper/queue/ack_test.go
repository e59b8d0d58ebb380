package queue

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func ack(t testing.TB, d *Delivery) {
	t.Helper()
	if err := d.Ack(bounded(t)); err != nil {
		t.Fatalf("Ack(%q) = %v", d.Data, err)
	}
}

// Whoever had an element before cannot remove it from under whoever has it now.
func TestQueueAckSparesTheNextConsumer(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	a, b := MustNew(c[0], "/q"), MustNew(c[1], "/q")
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	// Without a next one, Ack tells of the loss too, and the element stays.
	offer(t, a, "x")
	lost := receive(t, a, "x", 1)
	if err := raw.Delete(lockOf(lost.path()), -1); err != nil {
		t.Fatal(err)
	}
	if err := lost.Ack(bounded(t)); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Ack() without its lock = %v, want ErrLeaseLost", err)
	}
	ack(t, receive(t, a, "x", 2))
	for _, next := range []*Queue{a, b} {
		offer(t, a, "x")
		old := receive(t, a, "x", 1)
		if err := raw.Delete(lockOf(old.path()), -1); err != nil {
			t.Fatal(err)
		}
		if next == a { // its session has to notice first
			if _, err := old.Check(bounded(t)); !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("Check() = %v, want ErrLeaseLost", err)
			}
		}
		now := receive(t, next, "x", 2)
		if err := old.Ack(bounded(t)); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Ack() = %v, want ErrLeaseLost", err)
		}
		if err := old.Release(bounded(t)); err != nil {
			t.Error(err)
		}
		if _, err := now.Check(bounded(t)); err != nil {
			t.Errorf("Check() = %v, want a lock that is held", err)
		}
		ack(t, now)
	}
}

// The caller of an Ack leaves while its outcome is not known. The element is removed all the same, and
// another call tells it.
func TestQueueAckGoesOnWithoutItsCaller(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testserver.Proxy, testserver.Match) <-chan struct{}{
		"reply lost": (*testserver.Proxy).DropNextReply, "request lost": (*testserver.Proxy).DropNextRequest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, time.Minute)
			q, other := MustNew(r.Client, "/q"), MustNew(r.Other, "/q")
			offer(t, q, "x")
			d := receive(t, q, "x", 1)
			connect := r.Proxy.HoldNext(testserver.Op(testserver.OpConnect))
			lost := lose(r.Proxy, testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/lock")))
			ctx, leave := context.WithCancel(bounded(t))
			go func() { <-lost; <-connect.Held(); leave() }()
			if err := d.Ack(ctx); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Ack() = %v, want ErrUnavailable", err)
			}
			connect.Release()
			until(t, "the element is removed", func() bool { n, err := other.Len(bounded(t)); return err == nil && n == 0 })
			if err := d.Ack(bounded(t)); err != nil {
				t.Errorf("Ack() = %v after the element was removed", err)
			}
		})
	}
}
