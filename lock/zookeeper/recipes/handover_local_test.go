package recipes

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// neighbours are two places of one session, side by side; the first has the lock.
func neighbours(t *testing.T, cfg zookeeper.Config) (c *zookeeper.Client, held *Lease, second <-chan *Lease) {
	t.Helper()
	c = open(t, cfg)
	m := MustNewMutex(c, "/m")
	held, err := m.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	ch := make(chan *Lease, 1)
	go func() {
		l, err := m.Acquire(bounded(t))
		if err != nil {
			t.Errorf("Acquire() = %v", err)
		}
		ch <- l
	}()
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	until(t, "the second in line", func() bool {
		places, _, err := raw.Children(cfg.Chroot + "/m")
		return err == nil && len(places) == 2 && len(sessionOf(c).Unsettled()) == 0
	})
	return c, held, ch
}

// Within a session the lock is handed over before the delete has been applied,
// and nobody else has it until both places are gone.
func TestMutexHandOverWithinASessionDoesNotWaitForTheDelete(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.SessionTimeout = time.Minute // the connection outlasts the time that the delete is held back
	other := MustNewMutex(open(t, cfg), "/m")
	proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
	counter := proxy.Count(cfg.Chroot + "/m")
	cfg.Servers = []string{proxy.Addr()}
	_, held, second := neighbours(t, cfg)
	until(t, "the second to have looked at the line", func() bool {
		seen := counter.Seen()
		return seen.Unanswered == 0 && seen.Requests[testserver.OpGetChildren2] == 2
	})
	deletes := proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(cfg.Chroot+"/m/")))
	defer deletes.Release()
	held.ReleaseInBackground()
	lease := <-second
	if lease == nil {
		t.FailNow()
	}
	await(t, "the delete", deletes.Held())
	if there, _, err := rawConn(t, testserver.SharedZooKeeper(t)).Exists(pathOf(held)); !there || err != nil {
		t.Errorf("the old place is there: %t, %v, want the lock before the delete", there, err)
	}
	if !held.Fence().Before(lease.Fence()) {
		t.Errorf("fence = %v after %v, want a greater one", lease.Fence(), held.Fence())
	}
	if l, err := other.TryAcquire(bounded(t)); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() by another client = %v, %v, want ErrLocked", l, err)
	}
	deletes.Release()
	if err := held.Release(bounded(t)); err != nil {
		t.Errorf("Release() = %v", err)
	}
	if l, err := other.TryAcquire(bounded(t)); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() by another client after the delete = %v, %v, want ErrLocked", l, err)
	}
	if _, err := lease.Check(bounded(t)); err != nil {
		t.Errorf("Check() = %v, want the lock", err)
	}
	if err := lease.Release(bounded(t)); err != nil {
		t.Errorf("Release() = %v", err)
	}
	l, err := other.Acquire(bounded(t))
	if err != nil {
		t.Fatalf("Acquire() by another client after both = %v", err)
	}
	l.ReleaseInBackground()
}

// pairOf are two places of one session, side by side. The first has the lock.
func pairOf(t *testing.T, c *zookeeper.Client) (first, second *Lease) {
	t.Helper()
	ln := MustNewMutex(c, linePath).ln
	var places []*Lease
	for range 2 {
		l, err := ln.enqueue(bounded(t), sessionOf(c), exclusive, nil)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, l)
	}
	if err := places[0].begin(true, false); err != nil {
		t.Fatal(err)
	}
	return places[0], places[1]
}

// A waiter whose look at the line is old reads its znode before it believes in the lock.
func TestHandOverAfterALongWait(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(r *rig, second string) // the znode of the waiter, before the hand-over
		want  error
		keeps bool // its place
	}{
		"the znode is there": {func(*rig, string) {}, nil, true},
		"the znode is gone": {func(r *rig, second string) {
			if err := r.Raw.Delete(second, -1); err != nil {
				r.Fatal(err)
			}
		}, nil, false},
		"the znode may not be read": {func(r *rig, second string) {
			if _, err := r.Raw.SetACL(second, zk.WorldACL(zk.PermAll&^zk.PermRead), -1); err != nil {
				r.Fatal(err)
			}
		}, zookeeper.ErrNotPermitted, false},
		"given up meanwhile": {nil, context.Canceled, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, clock := still(t)
			m := MustNewMutex(r.Client, linePath)
			counter := r.Proxy.Count(r.Config.Chroot + linePath)
			first := r.queue(bounded(t), m.Acquire).granted()
			ctx, cancel := context.WithCancel(bounded(t))
			defer cancel()
			second := r.queue(ctx, m.Acquire)
			until(t, "the second to have looked at the line", func() bool {
				seen := counter.Seen()
				return seen.Unanswered == 0 && seen.Requests[testserver.OpGetChildren2] == 2
			})
			place := r.Config.Chroot + linePath + "/" + r.places()[1].Name
			clock.Advance(2 * held.Young)
			if tt.spoil != nil {
				tt.spoil(r, place)
			} else {
				read := r.Proxy.HoldNextReply(testserver.All(testserver.Op(testserver.OpGetData), testserver.Contains(place)))
				defer read.Release()
				go func() { <-read.Held(); cancel(); await(t, "answer", second.answered); read.Release() }()
			}
			first.ReleaseInBackground()
			await(t, "answer", second.answered)
			if !errors.Is(second.err, tt.want) {
				t.Fatalf("Acquire() = %v, want %v", second.err, tt.want)
			}
			if second.err != nil {
				if errors.Is(tt.want, context.Canceled) && !errors.Is(second.err, driver.ErrLocked) {
					t.Errorf("Acquire() given up = %v, want %v", second.err, driver.ErrLocked)
				}
				r.wantClean(r.Client)
				return
			}
			r.wantHeld(second.lease)
			if kept := pathOf(second.lease) == place; kept != tt.keeps {
				t.Errorf("the lock is at %s, the place was %s", pathOf(second.lease), place)
			}
			recipetest.Release(r, second.lease)
		})
	}
}
