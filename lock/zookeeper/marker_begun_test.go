package zookeeper

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
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
				if got := len(lease.marks.deletion(nil, nil)) == 1; got != e.oneStep {
					t.Errorf("the release writes nothing but its delete: %v, want %v", got, e.oneStep)
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

// A release that is asked for at the very moment at which a transaction is settled
// finds it under way or not.
func TestMarkBegunSettledWhileTheLeaseIsReleased(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	for range 200 {
		lease := r.take(r.l)
		settled, _, err := lease.held.Move()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for lease.held.Over() == nil {
			}
			settled(lease.held.Where())
		}()
		r.release(lease)
	}
}

// A lease is not taken for lost because its lock is moved at that moment.
func TestMarkBegunWhileTheLeaseIsChecked(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	lease := r.take(r.l)
	read := r.proxy.HoldNext(testserver.All(testserver.Op(testserver.OpGetData), testserver.Contains(r.path)))
	checked := make(chan error, 1)
	go func() { _, err := lease.Check(bounded(t)); checked <- err }()
	await(t, "read of the lock", read.Held())
	begun := make(chan error, 1)
	moved := r.proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.path+lockChild)))
	go func() { begun <- lease.MarkBegun(bounded(t), *newMarker(driver.StateUnknown)) }()
	await(t, "the transaction", moved.Held())
	moved.Release()
	read.Release()
	if err := <-begun; err != nil {
		t.Errorf("MarkBegun() = %v", err)
	}
	if err := <-checked; err != nil {
		t.Errorf("Check() = %v, want a held lease", err)
	}
	r.release(lease)
}

// A lock is moved while a check reads its old place, and the move is settled before the answer.
func TestMoveIsSettledWhileTheLeaseIsChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease, to := r.take(r.l), r.cfg.lockPath(r.sibling())
	read := r.proxy.HoldNext(onRead(r.path))
	checked := make(chan error, 1)
	go func() { _, err := lease.Check(bounded(t)); checked <- err }()
	await(t, "read of the lock", read.Held())
	settle, _, err := lease.held.Move()
	if err != nil {
		t.Fatal(err)
	}
	r.delete(r.path)
	create(t, r.raw, to, zk.FlagEphemeral)
	_, stat, err := r.raw.Exists(to)
	if err != nil {
		t.Fatal(err)
	}
	settle(to, stat.Czxid)
	read.Release()
	if err := <-checked; err != nil {
		t.Errorf("Check() = %v, want a held lease", err)
	}
	r.delete(to)
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
				err := testserver.KillSession(testserver.SharedZooKeeper(t)[0], old.ID(), password(r.proxy))
				return err == nil || old.Err() != nil
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
					age(lease)
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
	age(lease)
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
	data, err := newMarker(driver.StateUnknown).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	mk := &marking{m: lease.marks, data: data}
	mk.path, mk.czxid = lease.held.Where()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if here, err := mk.run(over, true); !here || !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("run() = %v, %v, want that the lock is here, and %v", here, err, context.Canceled)
	}
	r.wantMarker(nil)
	r.release(lease)
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

// Attempts that begin at the same moment share a transaction, and one that cannot
// does not harm the others.
func TestMarkBegunSharesAMulti(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	s := sessionOf(r.c)
	ids := []driver.KeyID{r.sibling(), r.sibling(), r.sibling(), r.sibling()}
	r.leave(ids[1], newMarker(driver.StateUnknown))
	var batch []session.Request
	var all []*marking
	var leases []*Lease
	var settle []func(string, int64)
	for _, id := range ids {
		lease, err := r.l.TryAcquire(bounded(t), request(id))
		if err != nil {
			t.Fatal(err)
		}
		data, _ := encodeMarker(newMarker(driver.StateUnknown))
		mk := &marking{m: lease.(*Lease).marks, data: data}
		mk.path, mk.czxid = lease.(*Lease).held.Where()
		settled, _, err := lease.(*Lease).held.Move()
		if err != nil {
			t.Fatal(err)
		}
		leases, settle = append(leases, lease.(*Lease)), append(settle, settled)
		all, batch = append(all, mk), append(batch, session.Request{Ops: mk.ops()})
	}
	if err := r.raw.Delete(r.cfg.lockPath(ids[2]), -1); err != nil {
		t.Fatal(err)
	}
	results := s.Batch(batch...)
	zxids := map[int64]int{}
	for i, mk := range all {
		got := results[i]
		if want := map[bool]session.Outcome{false: session.Applied, true: session.Refused}[i == 2]; got.Outcome != want {
			t.Errorf("write %d: %+v, want outcome %v", i, got, want)
		}
		if got.Outcome == session.Applied {
			zxids[got.Zxid]++
			mk.applied(got.Zxid)
		}
		settle[i](mk.path, mk.czxid)
		if i != 2 {
			r.wantHeld(leases[i])
		}
		r.release(leases[i])
	}
	if len(zxids) >= len(ids)-1 {
		t.Errorf("the transactions were %v, want fewer than attempts", zxids)
	}
	if got := r.marked(ids...); !slices.Equal(got, []bool{true, true, false, true}) {
		t.Errorf("markers left: %v", got)
	}
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
				if _, err := r.raw.Create(r.path+lockChild, lease.marks.owner.Encode(), zk.FlagEphemeral, r.cfg.ACL); err != nil {
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
