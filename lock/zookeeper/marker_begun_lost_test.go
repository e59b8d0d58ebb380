package zookeeper

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The transaction is lost, or its reply, and the caller waits until that is settled.
func TestMarkBegunLost(t *testing.T) {
	t.Parallel()
	for name, before := range befores() {
		for _, loss := range losses {
			for _, e := range begunEndings() {
				t.Run(name+", "+loss.name+", "+e.name, func(t *testing.T) {
					t.Parallel()
					r := newMarkerRig(t, 0)
					if before != nil {
						r.mark(before)
					}
					lease := r.take(r.l)
					lost := loss.lose(r.proxy, r.onLock())
					m := r.begin(lease)
					await(t, "the loss", lost)
					r.wantHeld(lease)
					r.wantLocked()
					r.wantMarker(m)
					after := e.mark(lease, m)
					r.release(lease)
					r.wantMarker(after)
					r.idle(r.c)
				})
			}
		}
	}
}

// The caller gives up while it is not known what became of the transaction, and
// gives the lock back. What the release says is left, whatever became of the transaction.
func TestMarkBegunGivenUp(t *testing.T) {
	t.Parallel()
	for name, before := range befores() {
		for _, loss := range losses {
			for _, end := range []string{"cleared", "silent", "as before"} {
				t.Run(name+", "+loss.name+", "+end, func(t *testing.T) {
					t.Parallel()
					r := newMarkerRig(t, 0)
					if before != nil {
						r.mark(before)
					}
					lease, m := r.take(r.l), newMarker(driver.StateUnknown)
					connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
					lost := loss.lose(r.proxy, r.onLock())
					ctx, cancel := context.WithCancel(bounded(t))
					go func() { <-lost; <-connect.Held(); cancel() }()
					if err := lease.MarkBegun(ctx, *m); !errors.Is(err, driver.ErrUnavailable) {
						t.Errorf("MarkBegun() = %v, want %v", err, driver.ErrUnavailable)
					}
					if err := lease.MarkBegun(bounded(t), *m); !errors.Is(err, driver.ErrUnavailable) {
						t.Errorf("MarkBegun() while another one is under way = %v, want %v", err, driver.ErrUnavailable)
					}
					switch end {
					case "cleared":
						lease.MarkOnRelease(nil)
					case "as before":
						lease.MarkOnRelease(before)
					}
					lease.ReleaseInBackground()
					connect.Release()
					r.idle(r.c)
					next := r.take(r.other)
					switch {
					case end == "cleared":
						wantFound(t, next, nil)
					case end == "as before":
						wantFound(t, next, before)
					case loss.name == "reply lost":
						wantFound(t, next, m)
					default:
						wantFound(t, next, before)
					}
					r.release(next)
				})
			}
		}
	}
}

// A release that is asked for while the transaction is on its way waits for it.
func TestMarkBegunOvertakenByTheRelease(t *testing.T) {
	t.Parallel()
	for name, before := range befores() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			if before != nil {
				r.mark(before)
			}
			lease := r.take(r.l)
			hold := r.proxy.HoldNext(r.onLock())
			result := make(chan error, 1)
			go func() { result <- lease.MarkBegun(bounded(t), *newMarker(driver.StateUnknown)) }()
			await(t, "transaction", hold.Held())
			checked := make(chan error, 1)
			go func() { _, err := lease.Check(bounded(t)); checked <- err }()
			lease.MarkOnRelease(nil)
			lease.ReleaseInBackground()
			hold.Release()
			if err := <-result; !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("MarkBegun() = %v, want %v", err, driver.ErrLeaseLost)
			}
			if err := <-checked; err != nil && !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("Check() = %v", err)
			}
			r.release(lease)
			r.wantMarker(nil)
			r.idle(r.c)
		})
	}
}

// With its session goes the lock. The marker stays, and nothing takes the key back.
func TestMarkBegunOutlivesItsSession(t *testing.T) {
	t.Parallel()
	for name, before := range befores() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			if before != nil {
				r.mark(before)
			}
			lease := r.take(r.l)
			m := r.begin(lease)
			old := sessionOf(r.c)
			until(t, "session killed", func() bool {
				err := testserver.KillSession(testserver.SharedZooKeeper(t)[0], old.session.Status.ID(), password(r.proxy))
				return err == nil || old.session.Status.Err() != nil
			})
			next := r.takeSoon(r.other)
			wantFound(t, next, m)
			r.wantLost(lease)
			lease.MarkOnRelease(completed())
			if err := lease.MarkBegun(bounded(t), *completed()); !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("MarkBegun() of a lost lease = %v, want %v", err, driver.ErrLeaseLost)
			}
			r.release(lease)
			r.idle(r.c)
			r.wantHeld(next)
			r.wantMarker(m)
		})
	}
}

// A transaction that never left the process says nothing about later ones.
func TestMarkBegunWithoutAConnection(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	lease := r.take(r.l)
	r.proxy.Refuse(true)
	r.proxy.Cut()
	until(t, "disconnected", func() bool { _, err := r.c.usable(); return err != nil })
	if err := lease.MarkBegun(bounded(t), *newMarker(driver.StateUnknown)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("MarkBegun() = %v, want %v", err, driver.ErrUnavailable)
	}
	r.proxy.Restore()
	m := completed()
	lease.MarkOnRelease(m)
	r.release(lease)
	r.wantMarker(m)
}

// The reply to the transaction of MarkBegun is lost, and an operator deletes the lock below the
// new marker, or puts a copy in its place. So the handler must not run.
func TestMarkBegunLostAndItsLockDeleted(t *testing.T) {
	t.Parallel()
	for _, copied := range []bool{false, true} {
		t.Run(map[bool]string{false: "deleted", true: "copied"}[copied], func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			lease := r.take(r.l)
			m := newMarker(driver.StateUnknown)
			hold := r.proxy.HoldNextReply(r.onChild())
			marked := make(chan error, 1)
			go func() { marked <- lease.MarkBegun(bounded(t), *m) }()
			await(t, "the marker is there", hold.Held())
			r.delete(r.path + lockChild)
			if copied {
				if _, err := r.raw.Create(r.path+lockChild, lease.marker.owner.Encode(), zk.FlagEphemeral, r.cfg.ACL); err != nil {
					t.Fatal(err)
				}
			}
			r.proxy.Cut()
			if err := <-marked; !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("MarkBegun() = %v, want %v", err, driver.ErrLeaseLost)
			}
			hold.Release()
			r.wantLost(lease)
			r.release(lease)
			r.wantMarker(m)
			r.idle(r.c)
		})
	}
}
