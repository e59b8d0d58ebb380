package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// TestEnsemble has what only several servers show. The tests share an ensemble, one after the other.
func TestEnsemble(t *testing.T) {
	t.Parallel()
	// With so long a syncLimit the followers do not notice that their leader is paused.
	e := testserver.StartEnsemble(t, 3, testserver.WithConfig("syncLimit=200"))
	t.Run("follower is cut off from its leader", func(t *testing.T) { followerCutOffFromItsLeader(t, e) })
	t.Run("release at a follower that was suspended", func(t *testing.T) { releaseAtAFollowerThatWasSuspended(t, e) })
	t.Run("leader is killed", func(t *testing.T) { leaderKilled(t, e) })
}

// A follower that is cut off from its leader goes on answering pings and reads.
// Who took those for signs of life would believe in a lease for as long as the
// follower does not notice, and the leader lets the session expire meanwhile.
func followerCutOffFromItsLeader(t *testing.T, e *testserver.Ensemble) {
	leader, followers := e.Leader(), e.Followers()
	proxy := testserver.StartZooKeeperProxy(t, followers[0].Addr())
	cfg := config(t, proxy.Addr())
	c := open(t, cfg)
	cfg.Servers = leader.Hosts()
	other := open(t, cfg).Locker()
	id := newID()
	lease, err := c.Locker().TryAcquire(bounded(t), request(id))
	if err != nil {
		t.Fatal(err)
	}
	timeout := sessionOf(c).session.Trust.Timeout()
	margin := session.Margin(timeout, cfg.TickTime)

	leader.Pause()
	paused := time.Now()
	// The follower does answer: reads work.
	if _, err := sessionOf(c).session.Reads.Hint(cfgPath(c, id), session.OfNode); err != nil {
		t.Errorf("read from the cut off follower = %v, the test tests nothing", err)
	}
	// Err asks the clock, so a busy machine that lets this goroutine run later does not make it fail.
	<-time.After(time.Until(paused.Add(timeout - margin/2)))
	if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Err() = %v %v after the leader was gone, with a session of %v, want %v", err, timeout-margin/2, timeout, driver.ErrLeaseLost)
	}
	await(t, "the end of the lease", lease.Done())
	leader.Resume()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var next driver.Lease
	until(t, "next owner", func() bool {
		next, err = driver.Acquire(ctx, other, request(id))
		return err == nil
	})
	if !lease.Fence().Before(next.Fence()) {
		t.Errorf("fence %v after %v", next.Fence(), lease.Fence())
	}
	lease.ReleaseInBackground()
	until(t, "usable again", func() bool { return c.Locker().Ping(bounded(t)) == nil })
	await(t, "background work", c.core.Keeper.Background.Idle())
	if _, err := next.Check(bounded(t)); err != nil {
		t.Errorf("Check() of the next owner = %v", err)
	}
}

func cfgPath(c *Client, id driver.KeyID) string { return c.cfg.lockPath(id) }

// One server stops answering; the session moves to another one, and its leases
// live on.
func TestStalledServerCostsNoLease(t *testing.T) {
	t.Parallel()
	var servers []string
	id := newID()
	seen := map[*testserver.Proxy]*testserver.Counter{}
	for range 3 {
		p := testserver.StartZooKeeperProxy(t, testserver.SharedZooKeeper(t)[0])
		servers = append(servers, p.Addr())
		seen[p] = p.Count(id.String()[3:])
	}
	cfg := config(t, servers...)
	// The library alone would notice after 13 s, when trust has run out.
	cfg.SessionTimeout, cfg.TickTime = 20*time.Second, 5*time.Second
	c := open(t, cfg)
	lease, err := c.Locker().TryAcquire(bounded(t), request(id))
	if err != nil {
		t.Fatal(err)
	}
	for p, counter := range seen {
		if counter.Seen().Total() > 0 {
			p.BlackHole(testserver.Both)
		}
	}
	if left, err := lease.Check(bounded(t)); err != nil || left <= 0 {
		t.Errorf("Check() = %v, %v; want the lease to live on", left, err)
	}
	if err := lease.Release(bounded(t)); err != nil {
		t.Errorf("Release() = %v", err)
	}
}

// The leader dies. Whether the lease survives the election or not, it is never
// believed in together with the next one.
func leaderKilled(t *testing.T, e *testserver.Ensemble) {
	cfg := config(t, e.Hosts()...)
	c, second := open(t, cfg), open(t, cfg)
	id := newID()
	var lease driver.Lease
	until(t, "lock taken", func() (ok bool) { // a young ensemble may drop a connection
		var err error
		lease, err = c.Locker().TryAcquire(bounded(t), request(id))
		return err == nil
	})
	e.Leader().Kill()
	until(t, "usable again", func() bool { return second.Locker().Ping(bounded(t)) == nil })
	select {
	case <-lease.Done():
	default:
		if _, err := second.Locker().TryAcquire(bounded(t), request(id)); err == nil {
			if _, err := lease.Check(bounded(t)); err == nil {
				t.Error("two owners")
			}
		}
	}
	lease.ReleaseInBackground()
	until(t, "next owner", func() bool {
		next, err := second.Locker().TryAcquire(bounded(t), request(id))
		if err == nil && !lease.Fence().Before(next.Fence()) {
			t.Errorf("fence %v after %v", next.Fence(), lease.Fence())
		}
		return err == nil
	})
}

// The client goes to a follower that has just been woken up and has thousands of transactions to
// catch up with. When Release says that the lock is gone it is.
func releaseAtAFollowerThatWasSuspended(t *testing.T, e *testserver.Ensemble) {
	leader, followers := e.Leader(), e.Followers()
	near, far := testserver.StartZooKeeperProxy(t, followers[0].Addr()), testserver.StartZooKeeperProxy(t, followers[1].Addr())
	far.Refuse(true)
	cfg := config(t, near.Addr(), far.Addr())
	cfg.SessionTimeout = 30 * time.Second
	cfg, ahead := adjustable(cfg)
	c := open(t, cfg)
	raw := rawConn(t, leader.Hosts())
	for round := range 2 {
		followers[1].Pause()
		var held []*Lease
		for range 64 {
			lease, err := c.Locker().TryAcquire(bounded(t), request(newID()))
			if err != nil {
				t.Fatalf("TryAcquire() = %v", err)
			}
			held = append(held, lease.(*Lease))
		}
		ahead.Add(int64(2 * time.Second)) // so that the releases read first
		var ops []any
		for i := range 100 {
			ops = append(ops, &zk.CreateRequest{Path: fmt.Sprintf("%s/x%d", cfg.Chroot, i), Acl: zk.WorldACL(zk.PermAll)},
				&zk.DeleteRequest{Path: fmt.Sprintf("%s/x%d", cfg.Chroot, i), Version: -1})
		}
		for range 30 {
			if _, err := raw.Multi(ops...); err != nil {
				t.Fatal(err)
			}
		}
		reconnect(t, c, near)
		reconnect(t, c, near)
		far.Refuse(false)
		near.Refuse(true)
		followers[1].Resume()
		// Some begin before the loss of the connection is known, so that their reads
		// wait in the client library.
		var releases sync.WaitGroup
		for i, lease := range held {
			if i == len(held)/4 {
				near.Cut()
			}
			releases.Go(func() {
				if err := lease.Release(bounded(t)); err != nil {
					t.Errorf("round %d: Release() = %v", round, err)
				}
			})
		}
		releases.Wait()
		for _, lease := range held {
			if there, _, err := raw.Exists(znodeOf(lease)); there || err != nil {
				t.Errorf("round %d: Release() = <nil>, and the lock is there: %v, %v", round, there, err)
			}
		}
		near.Refuse(false)
		until(t, "usable", func() bool { return c.Locker().Ping(bounded(t)) == nil })
		far.Refuse(true)
		far.Cut()
		until(t, "usable", func() bool { return c.Locker().Ping(bounded(t)) == nil })
	}
}
