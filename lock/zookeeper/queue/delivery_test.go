package queue

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func receive(t testing.TB, q *Queue, want string, attempt int) *Delivery {
	t.Helper()
	d, err := q.Receive(bounded(t))
	if err != nil {
		t.Fatalf("Receive() = %v", err)
	}
	if string(d.Data) != want || d.Attempt != attempt {
		t.Fatalf("Receive() = %q, attempt %d, want %q, %d", d.Data, d.Attempt, want, attempt)
	}
	return d
}

func TestQueueReceive(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	a, b := MustNew(c[0], "/q"), MustNew(c[1], "/q")
	ids := offer(t, a, "one", "two", "three")
	one, two := receive(t, a, "one", 1), receive(t, b, "two", 1)
	if one.ID != ids[0] || !one.Fence().Before(two.Fence()) && !two.Fence().Before(one.Fence()) {
		t.Errorf("Receive() = %s with %v, then %v; want %s and different fences", one.ID, one.Fence(), two.Fence(), ids[0])
	}
	if _, err := two.Check(bounded(t)); err != nil {
		t.Errorf("Check() = %v", err)
	}
	if e, err := b.Peek(bounded(t)); err != nil || string(e.Data) != "three" {
		t.Errorf("Peek() = %q, %v, want what nobody has locked", e.Data, err)
	}
	ack(t, two)
	ack(t, two) // again
	if err := two.Release(bounded(t)); err != nil {
		t.Errorf("Release() after Ack() = %v", err)
	}
	await(t, "end of an acknowledged lease", two.Done())
	if err := two.Err(); err != nil {
		t.Errorf("Err() after Ack() = %v", err)
	}
	// It keeps its place, and its fence moves on.
	before := one.Fence()
	if err := one.Release(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := one.Ack(bounded(t)); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Ack() after Release() = %v, want ErrLeaseLost", err)
	}
	one = receive(t, a, "one", 2)
	if !before.Before(one.Fence()) {
		t.Errorf("fence %v after %v", one.Fence(), before)
	}
	wantQueue(t, a, "three")
	if _, err := a.TryReceive(bounded(t)); !errors.Is(err, ErrEmpty) {
		t.Errorf("TryReceive() where all is locked = %v, want ErrEmpty", err)
	}
	ack(t, one)
	if n, err := a.Len(bounded(t)); n != 0 || err != nil {
		t.Errorf("Len() = %d, %v, want 0", n, err)
	}
}

// All elements are locked, some by this process and some by another: who waits
// gets whichever is given back, in whatever way.
func TestQueueReceiveWaitsForLocks(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, d *Delivery){
		"released": func(t *testing.T, d *Delivery) {
			if err := d.Release(bounded(t)); err != nil {
				t.Error(err)
			}
		},
		"killed": func(t *testing.T, d *Delivery) {
			d.held.Table().Client.Keeper.Abandon()
			raw := rawConn(t, testserver.SharedZooKeeper(t)) // what the servers do in the end
			if err := raw.Delete(lockOf(d.path()), -1); err != nil {
				t.Error(err)
			}
		},
	} {
		for _, own := range []bool{true, false} {
			if own && name == "killed" {
				continue
			}
			t.Run(fmt.Sprintf("%s, own %v", name, own), func(t *testing.T) {
				t.Parallel()
				c := crowd(t, 2)
				a, b := MustNew(c[0], "/q"), MustNew(c[1], "/q")
				offer(t, a, "0", "1", "2", "3")
				var held []*Delivery
				for i, q := range []*Queue{a, b, a, b} {
					held = append(held, receive(t, q, fmt.Sprint(i), 1))
				}
				got := make(chan *Delivery, 1)
				go func() {
					d, err := a.Receive(bounded(t))
					if err != nil {
						t.Errorf("Receive() = %v", err)
					}
					got <- d
				}()
				for _, i := range []int{1, 3} {
					until(t, "watch", func() bool {
						return watches(c[0], held[i].path())
					})
				}
				i := 2
				if !own {
					i = 3
				}
				end(t, held[i])
				if d := <-got; d != nil && string(d.Data) != fmt.Sprint(i) {
					t.Errorf("Receive() = %q, want %d", d.Data, i)
				}
			})
		}
	}
}

// Somebody else's znode below an element keeps it from being had, and costs
// nothing else.
func TestQueueForeignChildOfElement(t *testing.T) {
	t.Parallel()
	c := crowd(t, 1)[0]
	q := MustNew(c, "/q")
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	offer(t, q, "odd")
	d := receive(t, q, "odd", 1)
	create(t, raw, d.path()+"/foreign", 0)
	if err := d.Ack(bounded(t)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Ack() = %v, want ErrUnavailable", err)
	}
	if _, err := d.Check(bounded(t)); err != nil {
		t.Errorf("Check() = %v, want the lock to be held", err)
	}
	if err := d.Release(bounded(t)); err != nil {
		t.Fatal(err)
	}
	offer(t, q, "even")
	ack(t, receive(t, q, "even", 1))
	taken := make(chan error, 1)
	go func() {
		_, err := q.Take(bounded(t))
		taken <- err
	}()
	until(t, "watch", func() bool { return watches(c, d.path()) })
	if err := raw.Delete(d.path()+"/foreign", -1); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil {
		t.Errorf("Take() = %v", err)
	}
}

// Another consumer had the element after this one looked at it, and has given it back.
func TestQueueReceiveNoticesADeliveryInBetween(t *testing.T) {
	t.Parallel()
	r := newRig(t, time.Minute)
	slow, other := MustNew(r.Client, "/q"), MustNew(r.Other, "/q")
	offer(t, other, "x")
	lock := r.Proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/lock")))
	received := make(chan *Delivery, 1)
	go func() {
		defer close(received)
		d, err := slow.Receive(bounded(t))
		if err != nil {
			t.Errorf("Receive() = %v", err)
			return
		}
		received <- d
	}()
	await(t, "the request for the lock", lock.Held())
	between := receive(t, other, "x", 1)
	if err := between.Release(bounded(t)); err != nil {
		t.Fatal(err)
	}
	lock.Release()
	d := <-received
	if d == nil {
		return
	}
	if d.Attempt != 2 {
		t.Errorf("Receive() is delivery %d, want 2", d.Attempt)
	}
	ack(t, d)
}

// Another consumer has locked the element since this one looked at it, and gives it back.
func TestQueueTakeComesBackToALockedElement(t *testing.T) {
	t.Parallel()
	r := newRig(t, time.Minute)
	slow, other := MustNew(r.Client, "/q"), MustNew(r.Other, "/q")
	offer(t, other, "x")
	remove := r.Proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/q/e-")))
	refused := make(chan error, 1)
	go func() {
		_, err := slow.Remove(bounded(t))
		refused <- err
	}()
	await(t, "the removal", remove.Held())
	between := receive(t, other, "x", 1)
	remove.Release()
	if err := <-refused; !errors.Is(err, ErrEmpty) {
		t.Errorf("Remove() of a locked element = %v, want ErrEmpty", err)
	}
	if err := between.Release(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if e, err := slow.Take(bounded(t)); err != nil || string(e.Data) != "x" {
		t.Errorf("Take() = %q, %v, want x", e.Data, err)
	}
}
