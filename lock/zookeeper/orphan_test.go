package zookeeper

import (
	"errors"
	"reflect"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

func TestOrphanIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	o := r.c.core.Owner
	o.Try = "0"
	orphan := sessionOf(r.c).session.Writes.Do(&zk.CreateRequest{Path: r.path, Data: o.Encode(), Acl: r.cfg.ACL, Flags: zk.FlagEphemeral})
	if orphan.Outcome != session.Applied {
		t.Fatalf("orphan: %+v", orphan)
	}
	if _, err := r.other.TryAcquire(bounded(t), request(r.id)); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrLocked)
	}
	lease := r.take(r.l)
	r.wantHeld(lease)
	if token := lease.Fence().Token; token <= uint64(orphan.Zxid) {
		t.Errorf("fence %d, and that of the orphan was %d", token, orphan.Zxid)
	}
	r.release(lease)
}

// The reply to a create is lost, and the next server shows a lock that this session had
// before: an orphan. Another owner has the lock by now, and keeps it.
func TestOrphanOfThePast(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for round := range 5 {
		theirs := r.supersede(r.l)
		r.proxy.DropNextReply(r.onLock())
		if _, err := r.l.TryAcquire(bounded(t), request(r.id)); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("round %d: TryAcquire() = %v, want %v", round, err, driver.ErrLocked)
		}
		r.wantHeld(theirs)
		if t.Failed() {
			return
		}
		r.proxy.Restore()
		r.release(theirs)
		until(t, "usable", func() bool { return r.l.Ping(bounded(t)) == nil })
	}
}

// A create is refused, and the connection breaks before the read that decides has left the
// library's queue. The library sends the read over the next connection, in front of every write,
// to a server that shows a lock which this session had before. So the answer decides nothing.
// In some rounds the library fails the read instead, and in the first other one the test is over.
func TestOrphanOfThePastOverALaterConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	cfg, jam := r.cfg, jam{stuck: make(chan struct{})}
	cfg.Dial = jam.dial
	c := open(t, cfg)
	queue := reflect.ValueOf(connOf(t, sessionOf(c))).Elem().FieldByName("sendChan")
	theirs := r.supersede(c.Locker())
	for range 100 {
		create := r.proxy.HoldNextReply(r.onLock())
		acquired := make(chan error, 1)
		go func() {
			_, err := c.Locker().TryAcquire(bounded(t), request(r.id))
			acquired <- err
		}()
		await(t, "the create is answered", create.Held())
		jam.next.Store(true)
		go func() { _, _ = sessionOf(c).session.Reads.Hint("/", session.OfNode) }()
		await(t, "a write is stuck", jam.stuck)
		create.Release()
		until(t, "the next read is in the library's queue", func() bool { return queue.Len() > 0 })
		r.proxy.Cut()
		if err := <-acquired; !errors.Is(err, driver.ErrLocked) {
			t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrLocked)
		}
		r.wantHeld(theirs)
		if t.Failed() || r.proxy.Lagged() > 0 {
			return
		}
	}
	t.Error("no read was answered from the past")
}
