package zookeeper

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// begin marks the attempt of a lease, which has to succeed.
func (r *rig) begin(l *Lease) *driver.Marker {
	r.Helper()
	m := newMarker(driver.StateUnknown)
	if err := l.MarkBegun(bounded(r), *m); err != nil {
		r.Fatalf("MarkBegun() = %v", err)
	}
	return m
}

// wantLocked says that nobody else can have the rig's lock.
func (r *rig) wantLocked() {
	r.Helper()
	if lease, err := r.other.TryAcquire(bounded(r), request(r.id)); !errors.Is(err, driver.ErrLocked) {
		r.Errorf("TryAcquire() = %v, %v; want %v", lease, err, driver.ErrLocked)
	}
}

// begunEndings are all ways in which a begun attempt ends; with what is there then,
// where that is not the marker of MarkBegun.
func begunEndings() []struct {
	name    string
	mark    func(*Lease, *driver.Marker) *driver.Marker
	oneStep bool // a delete of the lock and nothing else
} {
	return []struct {
		name    string
		mark    func(*Lease, *driver.Marker) *driver.Marker
		oneStep bool
	}{
		{"silent", func(_ *Lease, begun *driver.Marker) *driver.Marker { return begun }, true},
		{"unknown", func(l *Lease, begun *driver.Marker) *driver.Marker { l.MarkOnRelease(begun); return begun }, true},
		{"completed", func(l *Lease, _ *driver.Marker) *driver.Marker { m := completed(); l.MarkOnRelease(m); return m }, false},
		{"released", func(l *Lease, _ *driver.Marker) *driver.Marker { l.MarkOnRelease(nil); return nil }, false},
	}
}

// befores are what a key may be marked with when its lock is taken.
func befores() map[string]*driver.Marker {
	return map[string]*driver.Marker{"unmarked": nil, "marked": newMarker(driver.StateUnknown)}
}

func TestMarkBegunLeavesTheMarkerAtOnce(t *testing.T) {
	t.Parallel()
	for name, before := range befores() {
		for _, e := range begunEndings() {
			t.Run(name+", "+e.name, func(t *testing.T) {
				t.Parallel()
				r := newMarkerRig(t, 0)
				if before != nil {
					r.mark(before)
				}
				lease := r.take(r.l)
				fence := lease.Fence()
				m := r.begin(lease)
				r.wantMarker(m)
				r.wantHeld(lease)
				r.wantLocked()
				wantFound(t, lease, before)
				if lease.Fence() != fence {
					t.Errorf("fence %v after MarkBegun, %v before", lease.Fence(), fence)
				}
				m = r.begin(lease) // once more does no harm
				r.wantMarker(m)
				r.wantHeld(lease)
				after := e.mark(lease, m)
				if more, _ := lease.marker.leave(nil); len(more) == 0 != e.oneStep {
					t.Errorf("the release writes %d znodes beside its delete, want none: %v", len(more), e.oneStep)
				}
				r.release(lease)
				r.wantMarker(after)
				next := r.take(r.other)
				wantFound(t, next, after)
				if !fence.Before(next.Fence()) {
					t.Errorf("fence %v after %v", next.Fence(), fence)
				}
				requests := r.proxy.Count(r.path)
				if err := lease.MarkBegun(bounded(t), *m); !errors.Is(err, driver.ErrLeaseLost) {
					t.Errorf("MarkBegun() of a released lease = %v, want %v", err, driver.ErrLeaseLost)
				}
				if n := requests.Seen().Total(); n != 0 {
					t.Errorf("MarkBegun() of a released lease made %d requests, want 0", n)
				}
				r.wantHeld(next)
				r.idle(r.c)
			})
		}
	}
}

func TestMarkBegunWithoutTheOption(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	lease := r.take(r.c.Locker())
	writes := r.proxy.HoldNext(r.onLock())
	r.begin(lease)
	select {
	case <-writes.Held():
		t.Error("a locker that leaves no markers wrote something")
	default:
	}
	writes.Release()
	r.wantHeld(lease)
	r.wantMarker(nil)
	r.release(lease)
}

func TestMarkBegunRefusesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	lease := r.take(r.l)
	if err := lease.MarkBegun(bounded(t), *newMarker(driver.StatePending)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("MarkBegun(pending) = %v, want %v", err, driver.ErrUnavailable)
	}
	r.wantHeld(lease)
	r.release(lease)
	r.wantMarker(nil)
}

// A lease is not taken for lost because its lock is moved at that moment.
func TestMarkBegunWhileTheLeaseIsChecked(t *testing.T) {
	t.Parallel()
	r, _ := still(t) // so the lock is young, and MarkBegun reads nothing
	lease := r.take(r.c.Locker(WithDurableMarkers()))
	// A session has so many reads under way at most. The check knows where the lock is, and has to wait.
	begun := make(chan struct{})
	var reading, others sync.WaitGroup
	for range 16 {
		reading.Add(1)
		others.Go(func() {
			_, _ = sessionOf(r.c).session.Reads.Look("/", func(*zk.Conn, string) (session.Node, error) {
				reading.Done()
				<-begun
				return session.Node{}, nil
			})
		})
	}
	reading.Wait()
	checked := make(chan error, 1)
	go func() { _, err := lease.Check(bounded(t)); checked <- err }()
	if err := r.l.Ping(bounded(t)); err != nil { // time enough for the check to begin
		t.Error(err)
	}
	if err := lease.MarkBegun(bounded(t), *newMarker(driver.StateUnknown)); err != nil {
		t.Errorf("MarkBegun() = %v", err)
	}
	close(begun)
	others.Wait()
	if err := <-checked; err != nil {
		t.Errorf("Check() = %v, want a held lease", err)
	}
	r.release(lease)
}

// An operator deletes the lock by hand. An attempt that has not begun does not begin,
// and what has come in place of its lock stays.
func TestMarkBegunAfterAnOperatorsDelete(t *testing.T) {
	t.Parallel()
	for name, before := range befores() {
		for how, relocked := range map[string]bool{"free": false, "locked again": true} {
			t.Run(name+", "+how, func(t *testing.T) {
				t.Parallel()
				r := newMarkerRig(t, 0)
				if before != nil {
					r.mark(before)
				}
				lease := r.take(r.l)
				if err := r.raw.Delete(znodeOf(lease), -1); err != nil {
					t.Fatal(err)
				}
				var next *Lease
				if relocked || before != nil { // a young lock below a marker is not looked at
					r.age()
				}
				if relocked {
					next = r.take(r.other)
				}
				if err := lease.MarkBegun(bounded(t), *newMarker(driver.StateUnknown)); !errors.Is(err, driver.ErrLeaseLost) {
					t.Errorf("MarkBegun() = %v, want %v", err, driver.ErrLeaseLost)
				}
				r.wantLost(lease)
				r.release(lease)
				r.wantMarker(before)
				if next != nil {
					r.wantHeld(next)
				}
				r.idle(r.c)
			})
		}
	}
}

// A marker that may not be written keeps its operation from starting, and its lock
// goes all the same.
func TestMarkBegunWithoutPermission(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	old := completed()
	data, _ := old.AppendBinary(nil)
	acl := append(zk.WorldACL(zk.PermRead|zk.PermCreate|zk.PermDelete), zk.DigestACL(zk.PermAll, "other", "secret")...)
	if _, err := r.raw.Create(r.path, data, 0, acl); err != nil {
		t.Fatal(err)
	}
	lease := r.take(r.l)
	if err := lease.MarkBegun(bounded(t), *newMarker(driver.StateUnknown)); !errors.Is(err, ErrNotPermitted) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("MarkBegun() = %v, want %v and %v", err, ErrNotPermitted, driver.ErrUnavailable)
	}
	r.wantHeld(lease)
	lease.MarkOnRelease(nil)
	r.release(lease)
	r.wantMarker(old)
}

// A lock that may not be read, which MarkBegun does when the lock is not young, has no marker.
func TestMarkBegunOfALockThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	lease := r.take(r.l)
	r.age()
	if _, err := r.raw.SetACL(r.path, zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	if err := lease.MarkBegun(bounded(t), *newMarker(driver.StateUnknown)); !errors.Is(err, ErrNotPermitted) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("MarkBegun() = %v, want %v and %v", err, ErrNotPermitted, driver.ErrUnavailable)
	}
	if _, err := r.raw.SetACL(r.path, zk.WorldACL(zk.PermAll), -1); err != nil {
		t.Fatal(err)
	}
	r.wantHeld(lease)
	m := r.begin(lease)
	r.release(lease)
	r.wantMarker(m)
}

// The time of a caller ends before its transaction is sent. Nobody is told that the key is marked.
func TestMarkBegunWithoutTime(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	lease := r.take(r.l)
	r.age() // so that the znode is read first
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := lease.MarkBegun(over, *newMarker(driver.StateUnknown)); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("MarkBegun() = %v, want %v", err, context.Canceled)
	}
	r.wantHeld(lease) // which waits for the end of the call
	r.wantMarker(nil)
	r.release(lease)
}

// Waiters for a lock that is moved below its marker wait for it there, also where
// that happens between their two reads.
func TestMarkBegunUnderWaiters(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]bool{"watched before": false, "between the reads": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			lease := r.take(r.other)
			looks := make(chan error, 1)
			wait := func() { looks <- r.l.Wait(bounded(t), r.id) }
			below := r.proxy.HoldNextReply(onWatch(r.path + lockChild))
			if between {
				watch := r.proxy.HoldNext(onWatch(r.path))
				go wait()
				await(t, "watch on the lock", watch.Held())
				r.begin(lease)
				watch.Release()
			} else {
				watch := r.proxy.HoldNextReply(onWatch(r.path))
				go wait()
				await(t, "watch on the lock", watch.Held())
				watch.Release()
				r.begin(lease)
				if err := <-looks; err != nil { // it looks again
					t.Fatalf("Wait() = %v", err)
				}
				go wait()
			}
			await(t, "watch below the marker", below.Held())
			below.Release()
			select {
			case err := <-looks:
				t.Fatalf("Wait() = %v before the release", err)
			default:
			}
			r.release(lease)
			if err := <-looks; err != nil {
				t.Errorf("Wait() = %v", err)
			}
		})
	}
}

// The removal of markers leaves those of attempts that run alone, however old, and
// asks nobody about them.
func TestMarkerRemovalSparesRunningAttempts(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	lease := r.take(r.other)
	m := r.begin(lease)
	settled := func(context.Context, driver.KeyID, *driver.Marker) (bool, error) {
		t.Error("asked about an attempt that runs")
		return true, nil
	}
	r.wantRemoved(MarkerRemoval{Retention: 1, Settled: settled}, MarkerStats{Looked: 1, Kept: 1})
	r.wantHeld(lease)
	r.wantMarker(m)
	r.release(lease)
}
