package queue

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

// queueRig is a rig with a queue: as seen through the proxy, and straight.
type queueRig struct {
	*rig
	q, direct *Queue
}

func newQueueRig(t testing.TB) queueRig {
	r := newRig(t, 0)
	qr := queueRig{r, MustNew(r.Client, "/q"), MustNew(r.Other, "/q")}
	// Afterwards there is a queue, and every stamp.
	offer(t, qr.q, "warm")
	wantQueue(t, qr.q, "warm")
	s := sessionOf(r.Client)
	for _, sl := range qr.stamps() {
		create := s.Session.Writes.Do(s.Client.Ephemeral(sl.Path(), nil))
		if create.Outcome != session.Applied && !create.RefusedBy(zk.ErrNodeExists) {
			t.Fatalf("create a stamp: %v", create.Err)
		}
		sl.Free()
	}
	return qr
}

// stamps claims all of them.
func (r queueRig) stamps() (all []*held.Claim) {
	r.Helper()
	for range once.Stamps {
		sl, err := once.ClaimStamp(bounded(r), sessionOf(r.Client))
		if err != nil {
			r.Fatal(err)
		}
		all = append(all, sl)
	}
	return all
}

// writes matches those that name the queue or what is in it.
func (r queueRig) writes() testserver.Match {
	return testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.q.path))
}

// A connection breaks with a write on its way: nobody notices, and nothing is
// done twice.
func TestQueueLostReplies(t *testing.T) {
	t.Parallel()
	losses := map[string]func(queueRig) <-chan struct{}{
		"reply lost":   func(r queueRig) <-chan struct{} { return r.Proxy.DropNextReply(r.writes()) },
		"request lost": func(r queueRig) <-chan struct{} { return r.Proxy.DropNextRequest(r.writes()) },
	}
	for name, op := range map[string]func(r queueRig, lose func() <-chan struct{}) <-chan struct{}{
		"offer": func(r queueRig, lose func() <-chan struct{}) <-chan struct{} {
			lost := lose()
			offer(r, r.q, "a")
			wantQueue(r, r.direct, "a")
			return lost
		},
		"batch": func(r queueRig, lose func() <-chan struct{}) <-chan struct{} {
			lost := lose()
			if ids, err := r.q.OfferAll(bounded(r), [][]byte{[]byte("a"), []byte("b")}); err != nil || len(ids) != 2 {
				r.Errorf("OfferAll() = %v, %v", ids, err)
			}
			wantQueue(r, r.direct, "a", "b")
			return lost
		},
		"named offer": func(r queueRig, lose func() <-chan struct{}) <-chan struct{} {
			offerNamed(r, r.q, "warm", "up", true) // the parent of the names is there
			wantQueue(r, r.direct, "up")
			lost := lose()
			offerNamed(r, r.q, "n", "x", true)
			offerNamed(r, r.direct, "n", "y", false)
			wantQueue(r, r.direct, "x")
			return lost
		},
		"poll": func(r queueRig, lose func() <-chan struct{}) <-chan struct{} {
			offer(r, r.q, "a", "b")
			lost := lose()
			if e, ok, err := r.q.Poll(bounded(r)); err != nil || !ok || string(e.Data) != "a" {
				r.Errorf("Poll() = %q, %v, %v, want the first", e.Data, ok, err)
			}
			wantQueue(r, r.direct, "b")
			return lost
		},
		"receive": func(r queueRig, lose func() <-chan struct{}) <-chan struct{} {
			offer(r, r.q, "a", "b")
			lost := lose()
			d := receive(r, r.q, "a", 1)
			r.wantHeld(d)
			wantQueue(r, r.direct, "b")
			ack(r, d)
			return lost
		},
		"ack": func(r queueRig, lose func() <-chan struct{}) <-chan struct{} {
			offer(r, r.q, "a", "b")
			d := receive(r, r.q, "a", 1)
			lost := lose()
			ack(r, d)
			wantQueue(r, r.direct, "b")
			return lost
		},
		"release": func(r queueRig, lose func() <-chan struct{}) <-chan struct{} {
			offer(r, r.q, "a", "b")
			d := receive(r, r.q, "a", 1)
			lost := lose()
			recipetest.Release(r, d)
			wantQueue(r, r.direct, "a", "b")
			return lost
		},
	} {
		for loss, lose := range losses {
			t.Run(name+", "+loss, func(t *testing.T) {
				t.Parallel()
				r := newQueueRig(t)
				r.TB = t
				lost := op(r, func() <-chan struct{} { return lose(r) })
				await(t, "the loss", lost)
				recipetest.Idle(r, r.Client)
				if n, err := r.direct.Len(bounded(t)); n != 0 || err != nil {
					t.Errorf("Len() = %d, %v, want 0", n, err)
				}
			})
		}
	}
}

// While an offer's reply is missed its element is consumed: it is not there, and
// was offered all the same.
func TestQueueLostOfferIsConsumed(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	connect := r.Proxy.HoldNext(testserver.Op(testserver.OpConnect))
	lost := r.Proxy.DropNextReply(r.writes())
	offered := make(chan error, 1)
	go func() {
		_, err := r.q.Offer(bounded(t), []byte("a"))
		offered <- err
	}()
	await(t, "lost reply", lost)
	await(t, "reconnect", connect.Held())
	wantQueue(t, r.direct, "a")
	connect.Release()
	if err := <-offered; err != nil {
		t.Errorf("Offer() = %v", err)
	}
	wantQueue(t, r.direct)
}

// The session ends while the reply is missed.
func TestQueueInDoubt(t *testing.T) {
	t.Parallel()
	for name, op := range map[string]func(q *Queue, d *Delivery) error{
		"offer": func(q *Queue, _ *Delivery) error {
			_, err := q.Offer(context.Background(), []byte("mine"))
			return err
		},
		"take": func(q *Queue, _ *Delivery) error {
			_, err := q.Take(context.Background())
			return err
		},
		"ack": func(_ *Queue, d *Delivery) error { return d.Ack(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newQueueRig(t)
			var d *Delivery
			if name != "offer" {
				offer(t, r.q, "mine")
			}
			if name == "ack" {
				d = receive(t, r.q, "mine", 1)
			}
			connect := r.Proxy.HoldNext(testserver.Op(testserver.OpConnect))
			lost := r.Proxy.DropNextReply(r.writes())
			got := make(chan error, 1)
			go func() { got <- op(r.q, d) }()
			await(t, "lost reply", lost)
			await(t, "reconnect", connect.Held())
			id, _ := r.Proxy.Session()
			if err := testserver.KillSession(testserver.SharedZooKeeper(t)[0], id, password(r.Proxy)); err != nil {
				t.Fatal(err)
			}
			connect.Release()
			err := <-got
			var doubt *InDoubtError
			if !errors.As(err, &doubt) || doubt.Op != name || len(doubt.Elements) != 1 || string(doubt.Elements[0].Data) != "mine" {
				t.Fatalf("%s = %v, want an *InDoubtError that carries the element", name, err)
			}
			if errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLeaseLost) != (name == "ack") {
				t.Errorf("%s = %v, which wraps what it should not", name, err)
			}
			var want []string
			if name == "offer" {
				want = []string{"mine"}
			}
			wantQueue(t, r.direct, want...)
		})
	}
}

// The caller leaves while the removal is on its way, and has the element.
func TestQueueTakeAbandoned(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	offer(t, r.q, "a", "b")
	reply := r.Proxy.HoldNextReply(r.writes())
	ctx, cancel := context.WithCancel(bounded(t))
	go func() { <-reply.Held(); cancel() }()
	_, err := r.q.Take(ctx)
	var doubt *InDoubtError
	if !errors.As(err, &doubt) || string(doubt.Elements[0].Data) != "a" || !errors.Is(err, context.Canceled) {
		t.Errorf("Take() = %v, want an *InDoubtError that carries the element, and %v", err, context.Canceled)
	}
	reply.Release()
	recipetest.Idle(r, r.Client)
	wantQueue(t, r.q, "b")
}

// The caller leaves while the lock is on its way, and the element stays.
func TestQueueReceiveAbandoned(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	offer(t, r.q, "a")
	reply := r.Proxy.HoldNextReply(r.writes())
	ctx, cancel := context.WithCancel(bounded(t))
	go func() { <-reply.Held(); cancel() }()
	if d, err := r.q.Receive(ctx); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("Receive() = %v, %v, want ErrUnavailable and %v", d, err, context.Canceled)
	}
	reply.Release()
	ack(t, receive(t, r.direct, "a", 2))
}

// A lock ends after an element was found locked, and before there is a watch for
// that.
func TestQueueLockEndsBeforeWatch(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	offer(t, r.direct, "a")
	held := receive(t, r.direct, "a", 1)
	watching := r.Proxy.HoldNext(testserver.All(testserver.Op(testserver.OpGetChildren2), testserver.Contains(held.path())))
	received := make(chan error, 1)
	go func() {
		_, err := r.q.Receive(bounded(t))
		received <- err
	}()
	await(t, "watch on its way", watching.Held())
	recipetest.Release(r, held)
	watching.Release()
	if err := <-received; err != nil {
		t.Errorf("Receive() = %v", err)
	}
}

// The holder gives the element back while its Ack is under way, and another call of Ack gives up
// meanwhile.
func TestQueueCallsDuringAnAck(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	offer(t, r.q, "a")
	d := receive(t, r.q, "a", 1)
	reply := r.Proxy.HoldNextReply(r.writes())
	first := make(chan error, 1)
	go func() { first <- d.Ack(bounded(t)) }()
	await(t, "the reply", reply.Held())
	if err := d.Ack(zktest.Canceled(t)); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("Ack() during another = %v, want ErrUnavailable and %v", err, context.Canceled)
	}
	d.ReleaseInBackground()
	reply.Release()
	if err := <-first; err != nil {
		t.Errorf("Ack() = %v", err)
	}
	ack(t, d)
	recipetest.Release(t, d)
	wantQueue(t, r.direct)
}

// The session ends before an Ack was sent. It was not applied, and says so.
func TestQueueAckUnsentAtTheEndOfTheSession(t *testing.T) {
	t.Parallel()
	r := newQueueRig(t)
	offer(t, r.q, "a")
	d := receive(t, r.q, "a", 1)
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	until(t, "unavailable", func() bool { return d.held.Table().Session.Status.Usable() != nil })
	acked := make(chan error, 1)
	go func() { acked <- d.Ack(bounded(t)) }()
	until(t, "the ack is under way", func() bool { return len(d.acking) == 1 })
	d.held.Table().Session.Trust.GiveUp()
	if err := <-acked; !errors.Is(err, driver.ErrLeaseLost) || errors.As(err, new(*InDoubtError)) {
		t.Errorf("Ack() = %v, want %v without a doubt", err, driver.ErrLeaseLost)
	}
	if n, err := r.direct.Len(bounded(t)); n != 1 || err != nil {
		t.Errorf("Len() = %d, %v, want the element", n, err)
	}
}

// The request for a lock is lost, and another consumer locks the element before the next one. The
// lock of the other one stays, whether the caller waits for the outcome or leaves.
func TestQueueReceiveLosesItsRequest(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]error{"the caller waits": ErrEmpty, "the caller leaves": context.Canceled} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newQueueRig(t)
			offer(t, r.q, "a")
			ctx, leave := context.WithCancel(bounded(t))
			defer leave()
			connect := r.Proxy.HoldNext(testserver.Op(testserver.OpConnect))
			lost := r.Proxy.DropNextRequest(testserver.All(r.writes(), testserver.Contains("/lock")))
			received := make(chan error, 1)
			go func() { received <- callTryReceive(ctx, r.q) }()
			await(t, "the loss", lost)
			await(t, "reconnect", connect.Held())
			other := receive(t, r.direct, "a", 1)
			if errors.Is(want, context.Canceled) {
				leave()
				if err := <-received; !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, want) {
					t.Errorf("TryReceive() = %v, want ErrUnavailable and %v", err, want)
				}
				connect.Release()
			} else {
				connect.Release()
				if err := <-received; !errors.Is(err, want) {
					t.Errorf("TryReceive() = %v, want %v", err, want)
				}
			}
			recipetest.Idle(t, r.Client)
			if _, err := other.Check(bounded(t)); err != nil {
				t.Errorf("Check() of the other consumer = %v, want a lock that is held", err)
			}
			ack(t, other)
		})
	}
}
