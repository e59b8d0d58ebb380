package zookeeper

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

// all removes every marker that is not of an unknown outcome.
var all = MarkerRemoval{Retention: 1}

// leave marks a key of the rig.
func (r *rig) leave(id driver.KeyID, m *driver.Marker) {
	r.Helper()
	lease, err := driver.Acquire(bounded(r), r.other, request(id))
	if err != nil {
		r.Fatalf("Acquire() = %v", err)
	}
	lease.(*Lease).MarkOnRelease(m)
	r.release(lease.(*Lease))
}

func (r *rig) wantRemoved(opts MarkerRemoval, want MarkerStats) {
	r.Helper()
	got, err := r.l.RemoveMarkers(bounded(r), opts)
	if err != nil || got != want {
		r.Errorf("RemoveMarkers() = %+v, %v; want %+v", got, err, want)
	}
}

// marked is which of the keys have a marker.
func (r *rig) marked(ids ...driver.KeyID) []bool {
	r.Helper()
	var is []bool
	for _, id := range ids {
		_, stat, err := r.raw.Get(r.cfg.lockPath(id))
		is = append(is, err == nil && stat.EphemeralOwner == 0)
	}
	return is
}

func TestMarkerRemovalOptions(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	for _, opts := range []MarkerRemoval{{}, {Retention: -1}, {Retention: 1, PerSecond: -1}} {
		if _, err := r.l.RemoveMarkers(bounded(t), opts); err == nil || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("RemoveMarkers(%+v) = %v, want it refused", opts, err)
		}
	}
	over, cancel := context.WithCancel(bounded(t))
	cancel()
	if _, err := r.l.RemoveMarkers(over, all); !errors.Is(err, context.Canceled) {
		t.Errorf("RemoveMarkers() = %v, want %v", err, context.Canceled)
	}
	r.wantRemoved(all, MarkerStats{}) // there is a parent, and nothing in it
	if _, err := r.raw.SetACL(r.cfg.homePath(), zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	r.wantRemoved(all, MarkerStats{}) // the base is no parent of locks
	other := open(t, sharedConfig(t)).Locker()
	if got, err := other.RemoveMarkers(bounded(t), all); err != nil || got != (MarkerStats{}) {
		t.Errorf("RemoveMarkers() where no lock was ever taken = %+v, %v", got, err)
	}
}

// The age of a marker is counted by the ensemble's clock, from its last write.
func TestMarkerRemovalByAge(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	old, young := newID(), newID()
	mtime := func(id driver.KeyID) int64 {
		_, stat, err := r.raw.Get(r.cfg.lockPath(id))
		if err != nil {
			t.Fatal(err)
		}
		return stat.Mtime
	}
	r.leave(old, completed())
	r.leave(young, completed())
	until(t, "a later marker", func() bool { r.leave(young, completed()); return mtime(young) > mtime(old)+10 })
	r.wantRemoved(MarkerRemoval{Retention: time.Hour}, MarkerStats{Looked: 2, Kept: 2})

	at := mtime(young) + 1000
	p := &removal{
		c: r.c, now: at,
		opts: MarkerRemoval{Retention: time.Duration(at-mtime(old)) * time.Millisecond, PerSecond: 1000},
	}
	if want := (MarkerStats{Looked: 2, Removed: 1, Kept: 1}); p.run(bounded(t)) != nil || p.stats != want {
		t.Errorf("run() = %+v, want %+v", p.stats, want)
	}
	if got := r.marked(old, young); got[0] || !got[1] {
		t.Errorf("markers left: %v, want the young one", got)
	}
	now, err := serverNow(bounded(t), sessionOf(r.c))
	if err != nil || now < mtime(young) {
		t.Errorf("serverNow() = %d, %v; want at least %d", now, err, mtime(young))
	}
	r.wantRemoved(all, MarkerStats{Looked: 1, Removed: 1})
}

func TestMarkerRemovalOfUnknownOutcomes(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	settled, open, young := newID(), newID(), newID()
	markers := map[driver.KeyID]*driver.Marker{}
	for _, id := range []driver.KeyID{settled, open} {
		markers[id] = newMarker(driver.StateUnknown)
		r.leave(id, markers[id])
	}
	r.wantRemoved(all, MarkerStats{Looked: 2, Unknown: 2}) // nobody to ask
	r.leave(young, newMarker(driver.StateUnknown))
	ask := func(_ context.Context, id driver.KeyID, m *driver.Marker) (bool, error) {
		if want := markers[id]; want == nil || *m != *want {
			t.Errorf("Settled(%v, %+v), want %+v", id, m, want)
		}
		return id == settled, nil
	}
	r.wantRemoved(MarkerRemoval{Retention: time.Hour, Settled: ask}, MarkerStats{Looked: 3, Kept: 3}) // not asked
	markers[young] = newMarker(driver.StateUnknown)
	r.leave(young, markers[young])
	r.leave(newID(), completed()) // not asked about
	r.wantRemoved(MarkerRemoval{Retention: 1, Settled: ask}, MarkerStats{Looked: 4, Removed: 2, Unknown: 2})
	if got := r.marked(settled, open); got[0] || !got[1] {
		t.Errorf("markers left: %v, want the open one", got)
	}
	failure := errors.New("store is away")
	stats, err := r.l.RemoveMarkers(bounded(t), MarkerRemoval{Retention: 1, Settled: func(context.Context, driver.KeyID, *driver.Marker) (bool, error) {
		return true, failure
	}})
	if want := (MarkerStats{Looked: 2, Unknown: 2}); stats != want { // it goes on past the first
		t.Errorf("RemoveMarkers() = %+v, want %+v", stats, want)
	}
	if !errors.Is(err, failure) || !r.marked(open)[0] {
		t.Errorf("RemoveMarkers() = %v, want %v and the marker left", err, failure)
	}
}

// A lock, with or without a marker above it, is not touched.
func TestMarkerRemovalSkipsLocks(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	m := completed()
	r.leave(r.id, m)
	for _, l := range []*Locker{r.l, r.other} { // held in this process, and by another one
		below := r.take(l)
		plain, err := l.TryAcquire(bounded(t), request(r.sibling()))
		if err != nil {
			t.Fatal(err)
		}
		r.wantRemoved(all, MarkerStats{Looked: 1, Kept: 1})
		r.wantHeld(below)
		r.wantHeld(plain.(*Lease))
		r.release(below)
		r.release(plain.(*Lease))
	}
	r.wantMarker(m)
	for _, name := range []string{"mine", strings.ToUpper(r.id.String()[3:])} { // no locker makes these
		create(t, r.raw, parentOf(r.c, r.id)+"/"+name, 0)
	}
	r.wantRemoved(all, MarkerStats{Looked: 1, Removed: 1})
}

// Between the judgement and the removal the key goes through other hands. What
// they leave stays, also where its version is that of what was judged.
func TestMarkerRemovalSparesWhatCameMeanwhile(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		change func(*rig) *Lease
		marker bool
	}{
		{"rewritten", func(r *rig) *Lease { r.mark(completed()); return nil }, true},
		{"removed and left anew", func(r *rig) *Lease { r.mark(nil); r.mark(completed()); return nil }, true},
		{"removed", func(r *rig) *Lease { r.mark(nil); return nil }, false},
		{"removed and locked", func(r *rig) *Lease { r.mark(nil); return r.take(r.other) }, false},
		{"locked", func(r *rig) *Lease { return r.take(r.other) }, true},
		{"locked in this process", func(r *rig) *Lease { return r.take(r.l) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			r.mark(newMarker(driver.StateUnknown))
			var held *Lease
			r.wantRemoved(MarkerRemoval{Retention: 1, Settled: func(context.Context, driver.KeyID, *driver.Marker) (bool, error) {
				held = tt.change(r)
				return true, nil
			}}, MarkerStats{Looked: 1, Kept: 1})
			if held != nil {
				r.wantHeld(held)
			}
			if got := r.marked(r.id); got[0] != tt.marker {
				t.Errorf("marker left: %v, want %v", got[0], tt.marker)
			}
			r.idle(r.c)
		})
	}
}

// A pass whose session ends before the ensemble has told the time is not called complete.
func TestMarkerRemovalWithoutAClock(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	s := sessionOf(r.c)
	if now, err := serverNow(zktest.Canceled(t), s); !errors.Is(err, context.Canceled) {
		t.Errorf("serverNow() = %d, %v; want %v", now, err, context.Canceled)
	}
	read := r.proxy.HoldNext(onRead(s.session.Member()))
	go func() {
		<-read.Held()
		r.delete(s.session.Member())
		read.Release()
	}()
	if stats, err := r.l.RemoveMarkers(bounded(t), all); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("RemoveMarkers() = %+v, %v; want %v", stats, err, driver.ErrUnavailable)
	}
}

// Two leaders in a partition, and traffic on the same keys: every marker is
// counted as removed once, and no lock is lost.
func TestMarkerRemovalByTwoAtOnce(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	const n = 40
	ids := make([]driver.KeyID, n)
	for i := range ids {
		ids[i] = r.sibling()
		r.leave(ids[i], completed())
	}
	var removed atomic.Int64
	var work sync.WaitGroup
	for _, l := range []*Locker{r.l, r.other} {
		work.Go(func() {
			got, err := l.RemoveMarkers(bounded(t), MarkerRemoval{Retention: 1, PerSecond: 1_000_000})
			if err != nil {
				t.Errorf("RemoveMarkers() = %v", err)
			}
			if got.Looked != got.Removed+got.Kept+got.Unknown {
				t.Errorf("stats do not add up: %+v", got)
			}
			removed.Add(int64(got.Removed))
		})
	}
	work.Go(func() {
		for _, id := range ids[:n/4] {
			lease, err := driver.Acquire(bounded(t), r.l, request(id))
			if err != nil {
				t.Errorf("Acquire() = %v", err)
				return
			}
			r.wantHeld(lease.(*Lease))
			r.release(lease.(*Lease))
		}
	})
	work.Wait()
	last, err := r.l.RemoveMarkers(bounded(t), all) // what was locked at the time
	if err != nil {
		t.Errorf("RemoveMarkers() = %v", err)
	}
	if got := int(removed.Load()) + last.Removed; got != n {
		t.Errorf("%d markers removed, want %d", got, n)
	}
	r.idle(r.c)
}
