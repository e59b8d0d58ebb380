package recipes

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
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

// A place whose znode was deleted by hand while it waited is not handed the lock.
func TestMutexHandOverNoticesAZnodeThatIsGone(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	raw := rawConn(t, cfg.Servers)
	c := open(t, cfg)
	ln := MustNewMutex(c, "/m").ln
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
	if got := places[1].neighbour([]line.Position{places[0].place.Position, places[1].place.Position}, 0); got == nil || got.held != places[0].held {
		t.Fatalf("neighbour() = %v, want the first place", got)
	}
	if err := raw.Delete(pathOf(places[1]), -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	places[0].ReleaseInBackground()
	handed, err := places[1].awaitHandOver(bounded(t), places[0], places[1].held.Table().Client.Now().Add(-held.Young))
	if handed || !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("awaitHandOver() = %v, %v, want ErrLeaseLost", handed, err)
	}
}

// Who gives up a place that never had its turn hands nothing over.
func TestMutexHandOverOnlyFromTheHead(t *testing.T) {
	t.Parallel()
	c := open(t, sharedConfig(t))
	ln := MustNewMutex(c, "/m").ln
	var places []*Lease
	for range 3 {
		l, err := ln.enqueue(bounded(t), sessionOf(c), exclusive, nil)
		if err != nil {
			t.Fatal(err)
		}
		places = append(places, l)
	}
	places[1].ReleaseInBackground()
	if handed, err := places[2].awaitHandOver(bounded(t), places[1], places[2].held.Table().Client.Now()); handed || err != nil {
		t.Errorf("awaitHandOver() = %v, %v, want to look again", handed, err)
	}
	places[0].ReleaseInBackground()
	places[2].ReleaseInBackground()
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

// A waiter of long standing, whose znode is there, is handed the lock.
func TestMutexHandOverAfterALongWait(t *testing.T) {
	t.Parallel()
	first, second := pairOf(t, open(t, sharedConfig(t)))
	first.ReleaseInBackground()
	handed, err := second.awaitHandOver(bounded(t), first, second.held.Table().Client.Now().Add(-2*held.Young))
	if !handed || err != nil || second.Err() != nil {
		t.Errorf("awaitHandOver() = %v, %v, want the lock", handed, err)
	}
	releaseAll(t, []*Lease{second})
}

// A place that is lost at the moment of the hand-over does not get the lock.
func TestMutexHandOverToALostPlace(t *testing.T) {
	t.Parallel()
	for _, waited := range []int{0, 2} {
		first, second := pairOf(t, open(t, sharedConfig(t)))
		first.ReleaseInBackground()
		_ = second.held.Lose()
		looked := second.held.Table().Client.Now().Add(-time.Duration(waited) * held.Young)
		for range 50 { // it may see the end of either place first
			if handed, err := second.awaitHandOver(bounded(t), first, looked); !errors.Is(err, driver.ErrLeaseLost) {
				t.Fatalf("awaitHandOver() = %v, %v, want %v", handed, err, driver.ErrLeaseLost)
			}
		}
	}
}

// A request to let go reaches the lease that has the lock now, over heirs that are gone. Without
// an heir it goes nowhere.
func TestRequestIsPassedOverHeirsThatAreGone(t *testing.T) {
	t.Parallel()
	first, second := pairOf(t, open(t, sharedConfig(t)))
	third, err := first.place.lineup.enqueue(bounded(t), first.held.Table(), exclusive, nil)
	if err != nil {
		t.Fatal(err)
	}
	third.place.passOn()
	wantOpen(t, third.place.wish())
	first.place.inherit(second)
	second.place.inherit(third)
	second.ReleaseInBackground()
	first.place.passOn()
	await(t, "the request", third.place.wish())
	wantOpen(t, second.place.wish())
	first.place.inherit(nil) // no lock is left held
	second.place.inherit(nil)
	releaseAll(t, []*Lease{first, third})
}
