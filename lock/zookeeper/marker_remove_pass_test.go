package zookeeper

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A pass that could not look at every marker does not say that it did.
func TestMarkerRemovalThatIsCutShort(t *testing.T) {
	t.Parallel()
	abandon := func(settled bool) func(*rig) MarkerRemoval {
		return func(r *rig) MarkerRemoval {
			return MarkerRemoval{Retention: 1, Settled: func(context.Context, driver.KeyID, *driver.Marker) (bool, error) {
				r.c.Abandon()
				return settled, nil
			}}
		}
	}
	during := func(hold func(*rig) *testserver.Hold) func(*rig) MarkerRemoval {
		return func(r *rig) MarkerRemoval {
			frame := hold(r)
			go func() { <-frame.Held(); r.c.Abandon(); frame.Release() }()
			return MarkerRemoval{Retention: 1, Settled: func(context.Context, driver.KeyID, *driver.Marker) (bool, error) { return true, nil }}
		}
	}
	hide := func(path func(*rig) string) func(*rig) MarkerRemoval {
		return func(r *rig) MarkerRemoval {
			if _, err := r.raw.SetACL(path(r), zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
				r.Fatal(err)
			}
			return all
		}
	}
	for _, tt := range []struct {
		name    string
		prepare func(*rig) MarkerRemoval
		err     error // beside ErrUnavailable
		want    MarkerStats
	}{
		{"no client to list the next parent", abandon(false), nil, MarkerStats{Looked: 1, Unknown: 1}},
		{"no client to lock the key", abandon(true), nil, MarkerStats{Looked: 1, Kept: 1}},
		{"no client to make the lock", during(func(r *rig) *testserver.Hold { return r.proxy.HoldNext(r.onChild()) }), nil, MarkerStats{Looked: 1, Kept: 1}},
		{"no client to read the marker", during(func(r *rig) *testserver.Hold { return r.proxy.HoldNext(onRead(r.path)) }), nil, MarkerStats{}},
		{"no client to release the lock", during(func(r *rig) *testserver.Hold {
			match, n := r.onChild(), 0
			return r.proxy.HoldNext(func(req testserver.Request) bool {
				if match(req) {
					n++
				}
				return n == 2
			})
		}), nil, MarkerStats{Looked: 1, Kept: 1}},
		{"the root is hidden", hide(func(r *rig) string { return r.cfg.rootPath() }), ErrNotPermitted, MarkerStats{}},
		{"the parent is hidden", hide(func(r *rig) string { return parentOf(r.c, r.id) }), ErrNotPermitted, MarkerStats{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newMarkerRig(t, 0)
			r.mark(newMarker(driver.StateUnknown))
			if strings.Contains(tt.name, "next parent") {
				next := r.id
				next[0]++
				r.leave(next, newMarker(driver.StateUnknown))
			}
			got, err := r.l.RemoveMarkers(bounded(t), tt.prepare(r))
			if !errors.Is(err, driver.ErrUnavailable) || tt.err != nil && !errors.Is(err, tt.err) || got != tt.want {
				t.Errorf("RemoveMarkers() = %+v, %v; want %+v, %v and %v", got, err, tt.want, driver.ErrUnavailable, tt.err)
			}
		})
	}
}

// The context ends between two markers. Each marker that was read is counted.
func TestMarkerRemovalEndsWithItsContext(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	for range 2 {
		r.leave(r.sibling(), newMarker(driver.StateUnknown))
	}
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	got, err := r.l.RemoveMarkers(ctx, MarkerRemoval{
		Retention: 1, PerSecond: 10,
		Settled: func(ctx context.Context, _ driver.KeyID, _ *driver.Marker) (bool, error) {
			cancel()
			return false, ctx.Err()
		},
	})
	if !errors.Is(err, context.Canceled) || got.Unknown == 0 || got.Looked != got.Unknown {
		t.Errorf("RemoveMarkers() = %+v, %v; want all of unknown outcome, and %v", got, err, context.Canceled)
	}
	p := &removal{c: r.c, opts: MarkerRemoval{Retention: 1, PerSecond: 1}}
	if err := p.run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("run() = %v, want %v", err, context.Canceled)
	}
}

// Each pass takes the parents in another order. So passes that are cut short reach all markers.
func TestMarkerRemovalInRandomOrder(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	for range 5 {
		r.leave(newID(), newMarker(driver.StateUnknown))
	}
	var first []driver.KeyID
	until(t, "another order", func() bool {
		var mu sync.Mutex
		var asked []driver.KeyID
		r.wantRemoved(MarkerRemoval{Retention: 1, Settled: func(_ context.Context, id driver.KeyID, _ *driver.Marker) (bool, error) {
			mu.Lock()
			defer mu.Unlock()
			asked = append(asked, id)
			return false, nil
		}}, MarkerStats{Looked: 5, Unknown: 5})
		if first == nil {
			first = asked
		}
		return !slices.Equal(asked, first)
	})
}

// The context ends while a marker is being removed. The removal ends in the background.
func TestMarkerRemovalGivenUp(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	r.mark(completed())
	lock := r.proxy.HoldNext(r.onChild())
	ctx, cancel := context.WithCancel(bounded(t))
	defer cancel()
	removed := make(chan error, 1)
	go func() {
		_, err := r.l.RemoveMarkers(ctx, all)
		removed <- err
	}()
	await(t, "the lock of the removal", lock.Held())
	cancel()
	if err := <-removed; !errors.Is(err, context.Canceled) {
		t.Errorf("RemoveMarkers() = %v, want %v", err, context.Canceled)
	}
	lock.Release()
	r.idle(r.c)
}

// A pass without a session has not looked at any marker, and says so.
func TestMarkerRemovalWithoutASession(t *testing.T) {
	t.Parallel()
	r := newMarkerRig(t, 0)
	if err := r.c.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	p := &removal{c: r.c, opts: MarkerRemoval{Retention: 1, PerSecond: 1000}}
	if err := p.run(bounded(t)); err == nil {
		t.Error("run() after Close() = <nil>, want an error")
	}
}

// A reply that is lost during a removal, on either of its writes.
func TestMarkerRemovalSurvivesLosses(t *testing.T) {
	t.Parallel()
	for _, loss := range losses {
		for skip := range 2 {
			t.Run(loss.name+", "+[]string{"lock", "removal"}[skip], func(t *testing.T) {
				t.Parallel()
				r := newMarkerRig(t, 0)
				r.mark(completed())
				match, n := r.onChild(), 0
				lost := loss.lose(r.proxy, func(req testserver.Request) bool {
					if !match(req) {
						return false
					}
					n++
					return n > skip
				})
				r.wantRemoved(all, MarkerStats{Looked: 1, Removed: 1})
				await(t, "the loss", lost)
				r.wantMarker(nil)
				r.idle(r.c)
			})
		}
	}
}

// A pass that was held up makes no step sooner for that.
func TestMarkerRemovalIsPaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := &removal{pace: time.NewTicker(time.Millisecond)}
		steps := func() time.Duration {
			began := time.Now()
			for range 1001 {
				if err := r.wait(t.Context()); err != nil {
					t.Fatalf("wait() = %v, want <nil>", err)
				}
			}
			return time.Since(began)
		}
		if took := steps(); took < time.Second || took > 1010*time.Millisecond {
			t.Errorf("1001 steps a millisecond apart took %v, want a second", took)
		}
		<-time.After(time.Hour) // of the fake clock
		if took := steps(); took < 999*time.Millisecond {
			t.Errorf("1001 steps after a pause took %v, want a second", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		r.pace.Reset(time.Hour)
		if err := r.wait(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("wait() = %v, want %v", err, context.Canceled)
		}
	})
}
