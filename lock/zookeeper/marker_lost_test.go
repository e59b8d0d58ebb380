package zookeeper

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// losses are the two ways in which a write can be lost: applied or not.
var losses = []struct {
	name string
	lose func(*testserver.Proxy, testserver.Match) <-chan struct{}
}{
	{"reply lost", (*testserver.Proxy).DropNextReply},
	{"request lost", (*testserver.Proxy).DropNextRequest},
}

func TestMarkerLostRelease(t *testing.T) {
	t.Parallel()
	for _, e := range endings() {
		for _, loss := range losses {
			t.Run(e.name+", "+loss.name, func(t *testing.T) {
				t.Parallel()
				r := newMarkerRig(t, 0)
				if e.before != nil {
					r.mark(e.before)
				}
				lease := r.take(r.l)
				e.mark(lease)
				lost := loss.lose(r.proxy, r.onLock())
				r.release(lease)
				await(t, "the loss", lost)
				r.wantMarker(e.after)
				r.idle(r.c)
				next := r.take(r.other)
				wantFound(t, next, e.after)
				r.release(next)
			})
		}
	}
}

// The reply to a release is lost, and before the session knows what became of
// it the key has gone through other hands: its lock, or its marker, is theirs.
func TestMarkerLostReleaseSparesTheNextOwner(t *testing.T) {
	t.Parallel()
	for _, e := range endings() {
		for _, between := range []struct {
			name string
			mark func(*Lease) *driver.Marker // what is there in the end; nil: as before
		}{
			{"held", nil},
			{"marked and held", func(l *Lease) *driver.Marker { m := completed(); l.MarkOnRelease(m); return m }},
			{"cleared and held", func(l *Lease) *driver.Marker { l.MarkOnRelease(nil); return nil }},
		} {
			t.Run(e.name+", "+between.name, func(t *testing.T) {
				t.Parallel()
				r := newMarkerRig(t, 0)
				if e.before != nil {
					r.mark(e.before)
				}
				lease := r.take(r.l)
				e.mark(lease)
				connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
				lost := r.proxy.DropNextReply(r.onLock())
				lease.ReleaseInBackground()
				await(t, "lost reply", lost)
				await(t, "reconnect", connect.Held())
				want := e.after
				if between.mark != nil {
					passing := r.take(r.other)
					want = between.mark(passing)
					r.release(passing)
				}
				next := r.take(r.other)
				connect.Release()
				r.idle(r.c)
				r.wantHeld(next)
				r.wantMarker(want)
				wantFound(t, next, want)
				r.release(next)
				r.wantMarker(want)
			})
		}
	}
}

// The holder releases the lock while it is not known where the lock is. An operator deletes it by
// hand meanwhile, and the next owner takes it.
func TestMarkerReleaseDuringALostMoveSparesTheNextOwner(t *testing.T) {
	t.Parallel()
	for _, loss := range losses {
		t.Run(loss.name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			lease := r.take(r.l)
			connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
			lost := loss.lose(r.proxy, r.onLock())
			begun := make(chan error, 1)
			go func() { begun <- lease.MarkBegun(bounded(t), *newMarker(driver.StateUnknown)) }()
			await(t, "the loss", lost)
			await(t, "reconnect", connect.Held())
			lease.ReleaseInBackground()
			for _, path := range []string{r.path + lockChild, r.path} {
				if err := r.raw.Delete(path, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
					t.Fatalf("Delete(%s) = %v", path, err)
				}
			}
			next := r.take(r.other)
			connect.Release()
			if err := <-begun; !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("MarkBegun() = %v, want ErrLeaseLost", err)
			}
			r.idle(r.c)
			r.wantHeld(next)
			r.release(next)
		})
	}
}

func TestMarkerLostCreate(t *testing.T) {
	t.Parallel()
	for _, before := range []*driver.Marker{nil, completed()} {
		for _, loss := range losses {
			name := map[bool]string{false: "unmarked, ", true: "marked, "}[before != nil]
			t.Run(name+loss.name, func(t *testing.T) {
				t.Parallel()
				r := newMarkerRig(t, 0)
				match := r.onLock()
				if before != nil {
					r.mark(before)
					match = r.onChild()
				}
				lost := loss.lose(r.proxy, match)
				lease := r.take(r.l)
				await(t, "the loss", lost)
				r.wantHeld(lease)
				wantFound(t, lease, before)
				m := completed()
				lease.MarkOnRelease(m)
				r.release(lease)
				r.wantMarker(m)
				r.idle(r.c)
			})
			t.Run(name+loss.name+", given up", func(t *testing.T) {
				t.Parallel()
				r := newMarkerRig(t, 0)
				match := r.onLock()
				if before != nil {
					r.mark(before)
					match = r.onChild()
				}
				ctx, cancel := context.WithCancel(bounded(t))
				connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
				lost := loss.lose(r.proxy, match)
				go func() { <-lost; <-connect.Held(); cancel() }()
				r.wantGivenUp(ctx)
				connect.Release()
				next := r.takeSoon(r.other)
				r.idle(r.c)
				r.wantHeld(next)
				wantFound(t, next, before)
				r.release(next)
			})
		}
	}
}

// What is at the path changes while somebody acquires.
func TestMarkerChangesDuringAcquire(t *testing.T) {
	t.Parallel()
	fresh := completed()
	by := func(r *rig, m *driver.Marker) {
		l := r.take(r.other)
		l.MarkOnRelease(m)
		r.release(l)
	}
	for _, tt := range []struct {
		name   string
		before *driver.Marker
		change func(*rig)
		after  *driver.Marker
		err    error
	}{
		{"a marker appears", nil, func(r *rig) { by(r, fresh) }, fresh, nil},
		{"the marker is replaced", completed(), func(r *rig) { by(r, fresh) }, fresh, nil},
		{"the marker vanishes", completed(), func(r *rig) { by(r, nil) }, nil, nil},
		{"the marker vanishes and a lock comes", completed(), func(r *rig) { by(r, nil); r.take(r.other) }, nil, driver.ErrLocked},
		{"somebody writes over the marker", completed(), func(r *rig) {
			if _, err := r.raw.Set(r.path, []byte("mine"), -1); err != nil {
				r.Error(err)
			}
		}, nil, driver.ErrUnavailable},
		{"the marker is locked", completed(), func(r *rig) { r.take(r.other) }, nil, driver.ErrLocked},
		{"the marker may not be read any more", completed(), func(r *rig) {
			if _, err := r.raw.SetACL(r.path, zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
				r.Error(err)
			}
		}, nil, ErrNotPermitted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			match := r.onLock()
			if tt.before != nil {
				r.mark(tt.before)
				match = r.onChild()
			}
			hold := r.proxy.HoldNext(match)
			go func() {
				<-hold.Held()
				tt.change(r)
				hold.Release()
			}()
			lease, err := r.l.TryAcquire(bounded(t), request(r.id))
			if !errors.Is(err, tt.err) {
				t.Fatalf("TryAcquire() = %v, want %v", err, tt.err)
			}
			if err == nil {
				r.wantHeld(lease.(*Lease))
				wantFound(t, lease.(*Lease), tt.after)
			}
			if err != nil && !errors.Is(err, driver.ErrLocked) {
				if ok, _, err := r.raw.Exists(r.path + lockChild); ok || err != nil {
					t.Errorf("a lock is left (%v)", err)
				}
			}
			r.idle(r.c)
		})
	}
}

// With its session goes the lock, and a marker is not left behind by it.
func TestMarkerIsNotLeftByADeadSession(t *testing.T) {
	t.Parallel()
	for _, before := range []*driver.Marker{nil, completed()} {
		t.Run(map[bool]string{false: "unmarked", true: "marked"}[before != nil], func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			if before != nil {
				r.mark(before)
			}
			lease := r.take(r.l)
			lease.MarkOnRelease(completed())
			old := sessionOf(r.c)
			until(t, "session killed", func() bool {
				err := testserver.KillSession(testserver.SharedZooKeeper(t)[0], old.session.Status.ID(), password(r.proxy))
				return err == nil || old.session.Status.Err() != nil
			})
			next := r.takeSoon(r.other)
			wantFound(t, next, before)
			r.wantLost(lease)
			r.release(lease)
			r.idle(r.c)
			r.wantHeld(next)
			r.wantMarker(before)
		})
	}
}

// A session that could not be trusted for a while, and lives: what its holder
// decided before still goes, what it decides afterwards does not.
func TestMarkerOfALeaseThatLostTrust(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(map[bool]string{false: "marked before", true: "marked after"}[late], func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			clock := leaseclock.NewManual()
			cfg := r.cfg
			cfg.now = clock.Now
			r.c = open(t, cfg)
			r.l = r.c.Locker(WithDurableMarkers())
			lease, m := r.take(r.l), completed()
			if !late {
				lease.MarkOnRelease(m)
			}
			s := sessionOf(r.c)
			lapse(t, lease, clock)
			lease.MarkOnRelease(completed())
			r.release(lease)
			if late {
				m = nil
			}
			r.wantMarker(m)
			if sessionOf(r.c) != s {
				t.Error("the session did not survive, the test tests nothing")
			}
		})
	}
}

// An operator deletes the lock by hand. Whatever its holder wanted to leave is
// not left over somebody else's lock, nor where there is nothing any more.
func TestMarkerAfterAnOperatorsDelete(t *testing.T) {
	t.Parallel()
	for _, e := range endings() {
		t.Run(e.name+", locked again", func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			lease := r.deletedByHand(e)
			r.age()
			next := r.take(r.other)
			r.release(lease)
			r.wantHeld(next)
			r.wantMarker(e.before)
		})
		t.Run(e.name+", free", func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			lease := r.deletedByHand(e)
			r.release(lease)
			lease.MarkOnRelease(e.after) // too late
			r.wantMarker(e.before)
			wantFound(t, r.take(r.other), e.before)
		})
	}
	t.Run("and puts znodes below a marker", func(t *testing.T) {
		t.Parallel()
		r := newMarkerRig(t, 0)
		m := completed()
		r.mark(m)
		lease := r.take(r.l)
		create(t, r.raw, r.path+"/mine", 0)
		lease.MarkOnRelease(nil)
		r.release(lease)
		r.wantMarker(m) // it cannot go
		wantFound(t, r.take(r.other), m)
	})
}

// deletedByHand has a lock taken, its end prepared, and deleted.
func (r *rig) deletedByHand(e ending) *Lease {
	r.Helper()
	if e.before != nil {
		r.mark(e.before)
	}
	lease := r.take(r.l)
	e.mark(lease)
	if err := r.raw.Delete(znodeOf(lease), -1); err != nil {
		r.Fatal(err)
	}
	return lease
}

// An orphan below a marker is recognised as one.
func TestMarkerOrphanIsRemoved(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	m := completed()
	r.mark(m)
	o := r.c.core.Owner
	o.Try = "0"
	orphan := &zk.CreateRequest{Path: r.path + lockChild, Data: o.Encode(), Acl: r.cfg.ACL, Flags: zk.FlagEphemeral}
	if got := sessionOf(r.c).session.Writes.Do(orphan); got.Outcome != session.Applied {
		t.Fatalf("orphan: %+v", got)
	}
	lease := r.take(r.l)
	r.wantHeld(lease)
	wantFound(t, lease, m)
	r.release(lease)
}

// An operator deletes the lock and its marker before the new holder has read the marker. The
// holder takes another lock, unless somebody else has one by then.
func TestMarkerDeletedBeforeItIsRead(t *testing.T) {
	t.Parallel()
	for name, relocked := range map[string]bool{"free": false, "locked again": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			r.mark(completed())
			hold := r.proxy.HoldNextReply(r.onChild())
			acquired := make(chan error, 1)
			var lease driver.Lease
			go func() {
				var err error
				lease, err = r.l.TryAcquire(bounded(t), request(r.id))
				acquired <- err
			}()
			await(t, "the lock below the marker", hold.Held())
			for _, path := range []string{r.path + lockChild, r.path} {
				if err := r.raw.Delete(path, -1); err != nil {
					t.Fatal(err)
				}
			}
			var theirs *Lease
			if relocked {
				theirs = r.take(r.other)
			}
			hold.Release()
			err := <-acquired
			if relocked {
				if !errors.Is(err, driver.ErrLocked) {
					t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrLocked)
				}
				r.wantHeld(theirs)
				r.release(theirs)
				return
			}
			if err != nil {
				t.Fatalf("TryAcquire() = %v", err)
			}
			r.wantHeld(lease.(*Lease))
			wantFound(t, lease.(*Lease), nil)
			r.release(lease.(*Lease))
			r.wantMarker(nil)
		})
	}
}
