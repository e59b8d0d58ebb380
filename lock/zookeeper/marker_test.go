package zookeeper

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

// newMarker is a marker that no other is equal to.
func newMarker(state driver.State) *driver.Marker {
	m := &driver.Marker{
		State: state, Kind: driver.ClientKey, Route: "POST /payments",
		Attempt: driver.Attempt{Number: 1, Fence: driver.Fence{Domain: uuid.New(), Token: rand.Uint64()}, Nonce: driver.NewNonce()},
		Started: time.UnixMilli(1_700_000_000_000).UTC(),
	}
	m.Fingerprint.Version = 1
	return m
}

func completed() *driver.Marker { return newMarker(driver.StateCompleted) }

// newMarkerRig is a rig whose lockers leave markers.
func newMarkerRig(t testing.TB, timeout time.Duration) *rig {
	t.Helper()
	r := newRig(t, timeout)
	r.l = r.c.Locker(WithDurableMarkers())
	r.other = r.other.c.Locker(WithDurableMarkers())
	return r
}

// onChild matches the writes that name the lock below the rig's marker.
func (r *rig) onChild() testserver.Match {
	return testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.path+lockChild))
}

// mark has the rig's key marked by an attempt of the other client.
func (r *rig) mark(m *driver.Marker) {
	r.Helper()
	lease := r.takeSoon(r.other)
	lease.MarkOnRelease(m)
	r.release(lease)
	r.wantMarker(m)
}

// wantMarker says what is at the key's path: a marker, or with nil none.
func (r *rig) wantMarker(want *driver.Marker) {
	r.Helper()
	data, stat, err := r.raw.Get(r.path)
	if want == nil {
		if !errors.Is(err, zk.ErrNoNode) && (err != nil || stat.EphemeralOwner == 0) {
			r.Errorf("at the path: %q, %v; want no marker", data, err)
		}
		return
	}
	encoded, _ := want.AppendBinary(nil)
	if err != nil || stat.EphemeralOwner != 0 || !bytes.Equal(data, encoded) {
		r.Errorf("at the path: %q, %+v, %v; want the marker %q", data, stat, err, encoded)
	}
}

func wantFound(t testing.TB, l *Lease, want *driver.Marker) {
	t.Helper()
	if got := l.Marker(); !reflect.DeepEqual(got, want) {
		t.Errorf("Marker() = %+v, want %+v", got, want)
	}
}

// ending is a way to release a key.
type ending struct {
	name   string
	before *driver.Marker // what the key was marked with
	mark   func(*Lease)
	after  *driver.Marker
}

// endings are all of them.
func endings() []ending {
	old, fresh := completed(), newMarker(driver.StateUnknown)
	leave := func(m *driver.Marker) func(*Lease) { return func(l *Lease) { l.MarkOnRelease(m) } }
	silent := func(*Lease) {}
	return []ending{
		{"unmarked, silent", nil, silent, nil},
		{"unmarked, nil", nil, leave(nil), nil},
		{"unmarked, marker", nil, leave(fresh), fresh},
		{"marked, silent", old, silent, old},
		{"marked, nil", old, leave(nil), nil},
		{"marked, another marker", old, leave(fresh), fresh},
	}
}

func TestMarkerIsLeftAndFound(t *testing.T) {
	t.Parallel()
	for _, e := range endings() {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			if e.before != nil {
				r.mark(e.before)
			}
			lease := r.take(r.l)
			r.wantHeld(lease)
			wantFound(t, lease, e.before)
			e.mark(lease)
			r.wantMarker(e.before) // not before the release
			r.release(lease)
			lease.MarkOnRelease(completed()) // too late
			r.release(lease)
			r.wantMarker(e.after)
			next := r.take(r.other)
			wantFound(t, next, e.after)
			if !lease.Fence().Before(next.Fence()) {
				t.Errorf("fence %v after %v", next.Fence(), lease.Fence())
			}
			r.idle(r.c)
		})
	}
}

// The last call of MarkOnRelease before the end counts, and one that cannot be kept is
// none.
func TestMarkerOfTheLastCall(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	want, long, pending := completed(), completed(), newMarker(driver.StatePending)
	long.Route = strings.Repeat("x", 256)
	lease := r.take(r.l)
	for _, m := range []*driver.Marker{completed(), nil, want, long, pending} {
		lease.MarkOnRelease(m)
	}
	r.release(lease)
	r.wantMarker(want)
}

// Instances that were not told to keep markers, in the middle of a roll-out.
func TestMarkerMetByALockerWithoutTheOption(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	plain := r.c.Locker(nil)
	lease := r.take(plain)
	wantFound(t, lease, nil)
	lease.MarkOnRelease(completed())
	r.release(lease)
	r.wantMarker(nil)

	m := completed()
	r.mark(m)
	for _, mark := range []*driver.Marker{nil, completed()} {
		lease := r.take(plain)
		wantFound(t, lease, m)
		r.wantHeld(lease)
		if _, err := r.other.TryAcquire(bounded(t), request(r.id)); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrLocked)
		}
		lease.MarkOnRelease(mark)
		r.release(lease)
		r.wantMarker(m)
	}
}

// Whatever somebody puts there, nobody takes it for a lock that is free, and
// nobody removes it.
func TestMarkerPathsWithForeignData(t *testing.T) {
	t.Parallel()
	marker, _ := completed().AppendBinary(nil)
	for _, tt := range []struct {
		name        string
		data, child []byte
	}{
		{"empty", []byte{}, nil},
		{"text", []byte("keep out"), nil},
		{"cut short", marker[:len(marker)/2], nil},
		{"of a later version", append([]byte("idm\xff"), marker[4:]...), nil},
		{"below a marker", marker, []byte("mine")},
		{"a marker below a marker", marker, marker},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			at, acl := r.path, zk.WorldACL(zk.PermAll)
			if _, err := r.raw.Create(at, tt.data, 0, acl); err != nil {
				t.Fatal(err)
			}
			if tt.child != nil {
				at += lockChild
				if _, err := r.raw.Create(at, tt.child, 0, acl); err != nil {
					t.Fatal(err)
				}
			}
			lease, err := r.l.TryAcquire(bounded(t), request(r.id))
			if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), at) {
				t.Errorf("TryAcquire() = %v, %v; want %v that names %s", lease, err, driver.ErrUnavailable, at)
			}
			if _, err := r.l.RemoveMarkers(bounded(t), MarkerRemoval{Retention: 1}); err != nil {
				t.Errorf("RemoveMarkers() = %v", err)
			}
			if ok, _, err := r.raw.Exists(at); !ok || err != nil {
				t.Errorf("Exists(%s) = %v, %v; want true", at, ok, err)
			}
			if err := r.l.Wait(bounded(t), r.id); err != nil {
				t.Errorf("Wait() = %v, want <nil>, because it is no lock", err)
			}
			r.idle(r.c)
		})
	}
}

// A lease below a marker is lost like any other.
func TestMarkerLeaseIsCheckedAtItsOwnZnode(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	m := completed()
	r.mark(m)
	lease := r.take(r.l)
	if left, err := lease.Check(bounded(t)); err != nil || left <= 0 {
		t.Errorf("Check() = %v, %v; want a held lease", left, err)
	}
	if err := r.raw.Delete(r.path+lockChild, -1); err != nil {
		t.Fatal(err)
	}
	r.wantLostAtCheck(lease)
	r.wantMarker(m)
}

func TestMarkerWait(t *testing.T) {
	t.Parallel()
	t.Run("a marker alone looks free", func(t *testing.T) {
		t.Parallel()
		r := newMarkerRig(t, 0)
		r.mark(completed())
		for range 3 {
			if err := r.l.Wait(bounded(t), r.id); err != nil {
				t.Errorf("Wait() = %v", err)
			}
		}
		if paths := watchedBy(sessionOf(r.c)); len(paths) > 0 {
			t.Errorf("watches are left at %q", paths)
		}
	})
	for _, e := range endings() {
		t.Run("woken by a release: "+e.name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			if e.before != nil {
				r.mark(e.before)
			}
			lease := r.take(r.other)
			woken := make(chan error, 1)
			watch := r.proxy.HoldNextReply(onWatch(znodeOf(lease)))
			go func() { woken <- r.l.Wait(bounded(t), r.id) }()
			await(t, "watch on the lock", watch.Held())
			watch.Release()
			select {
			case err := <-woken:
				t.Fatalf("Wait() = %v before the release", err)
			default:
			}
			e.mark(lease)
			r.release(lease)
			if err := <-woken; err != nil {
				t.Errorf("Wait() = %v", err)
			}
			wantFound(t, r.take(r.l), e.after)
		})
	}
}

// onWatch matches the read that leaves a watch at path.
func onWatch(path string) testserver.Match {
	return func(req testserver.Request) bool {
		return req.Op == testserver.OpGetData && bytes.HasSuffix(req.Payload, []byte(path+"\x01"))
	}
}

// 64 goroutines of three clients want one key, which is marked and unmarked all
// the time, while replies are lost: one holds it at a time, finds what the last
// one has left, and has a greater fence.
func TestMarkerExclusion(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	lockers := []*Locker{r.l, open(t, r.cfg).Locker(WithDurableMarkers()), r.other}
	r.mark(completed())
	last := r.take(r.l)
	model := last.Marker() // guarded by the lock alone, like fence
	fence := last.Fence()
	r.release(last)

	stop := make(chan struct{})
	var faulty, work sync.WaitGroup
	faulty.Go(func() {
		for i := 0; ; i++ {
			lost := r.proxy.DropNextReply(r.onLock())
			if i%2 == 1 {
				lost = r.proxy.DropNextRequest(r.onLock())
			}
			select {
			case <-stop:
				return
			case <-lost:
			}
			until(t, "connected again", func() bool { return r.l.Ping(bounded(t)) == nil })
		}
	})
	var inside atomic.Int32
	for i := range 64 {
		work.Go(func() {
			var lease *Lease
			until(t, "lock", func() bool {
				got, err := driver.Acquire(bounded(t), lockers[i%3], request(r.id))
				if err == nil {
					lease = got.(*Lease)
				} else if !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("Acquire() = %v", err)
				}
				return err == nil
			})
			if n := inside.Add(1); n != 1 {
				t.Errorf("%d holders at once", n)
			}
			wantFound(t, lease, model)
			if !fence.Before(lease.Fence()) {
				t.Errorf("fence %v after %v", lease.Fence(), fence)
			}
			fence = lease.Fence()
			switch i % 5 {
			case 0, 1:
				model = completed()
				lease.MarkOnRelease(model)
			case 2, 3:
				model = nil
				lease.MarkOnRelease(nil)
			}
			inside.Add(-1)
			if err := lease.Release(bounded(t)); err != nil {
				t.Errorf("Release() = %v", err)
			}
		})
	}
	work.Wait()
	close(stop)
	faulty.Wait()
	r.proxy.Restore()
	r.idle(r.c)
	r.wantMarker(model)
}
