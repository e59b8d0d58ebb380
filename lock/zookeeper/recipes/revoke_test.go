package recipes

import (
	"os"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

func TestRevoke(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		early bool // asked before the holder looks
		lose  func(p *testserver.Proxy, m testserver.Match) <-chan struct{}
	}{
		{name: "while the holder looks"},
		{name: "before the holder looks", early: true},
		{name: "reply lost", lose: (*testserver.Proxy).DropNextReply},
		{name: "request lost", lose: (*testserver.Proxy).DropNextRequest},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			holder, asker := MustNewMutex(r.Other, "/m"), MustNewMutex(r.Client, "/m")
			if err := asker.Revoke(bounded(t)); err != nil {
				t.Errorf("Revoke() of a free lock = %v", err)
			}
			l, err := holder.Acquire(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			waiter := make(chan *Lease)
			go func() {
				next, err := asker.Acquire(bounded(t))
				if err != nil {
					t.Errorf("Acquire() = %v", err)
				}
				waiter <- next
			}()
			until(t, "waiter", func() bool { return len(participants(t, asker)) == 2 })
			if !tt.early {
				wantOpen(t, l.Revoked())
			}
			var lost <-chan struct{}
			if tt.lose != nil {
				lost = tt.lose(r.Proxy, testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(pathOf(l))))
			}
			var wg sync.WaitGroup
			askers := 3
			if tt.lose != nil {
				askers = 1 // so that no other does its work
			}
			for range askers {
				wg.Go(func() {
					until(t, "asked", func() bool { return asker.Revoke(bounded(t)) == nil })
				})
			}
			wg.Wait()
			if lost != nil {
				await(t, "the loss", lost)
			}
			await(t, "Revoked()", l.Revoked())
			await(t, "Revoked() again", l.Revoked())
			r.wantHeld(l) // it was asked, no more
			if p := participants(t, asker); len(p) != 2 || !p[0].Revoked || p[1].Revoked {
				t.Errorf("Participants() = %+v, want the first to be asked", p)
			}
			recipetest.Release(r, l)
			next := <-waiter
			wantOpen(t, next.Revoked())
			recipetest.Release(r, next)
			wantOpen(t, next.Revoked())
		})
	}
}

func wantOpen(t testing.TB, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
		t.Error("channel is closed already")
	default:
	}
}

func participants(t testing.TB, m *Mutex) []Participant {
	t.Helper()
	p, err := m.Participants(bounded(t))
	if err != nil && t.Context().Err() == nil {
		t.Logf("Participants() = %v", err) // the connection broke
	}
	return p
}

// Asking survives the holder's reconnects, and does not reach the next holder.
func TestRevokeWhileTheHolderIsAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	l, err := MustNewMutex(r.Client, "/m").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	second := r.call(bounded(t), MustNewMutex(r.Client, "/m").Acquire)
	until(t, "a second in line", func() bool { return len(participants(t, MustNewMutex(r.Other, "/m"))) == 2 })
	revoked := l.Revoked()
	r.Proxy.Cut()
	until(t, "connected again", func() bool { return r.Client.Locker().Ping(bounded(t)) == nil })
	r.wantHeld(l)
	wantOpen(t, revoked) // the reconnect asks nobody to let go
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	if err := MustNewMutex(r.Other, "/m").Revoke(bounded(t)); err != nil {
		t.Fatal(err)
	}
	r.Proxy.Refuse(false)
	await(t, "Revoked()", revoked)
	r.wantHeld(l)
	recipetest.Release(r, l)
	next := second.granted()
	r.wantHeld(next)
	wantOpen(t, next.Revoked())
	recipetest.Release(r, next)
}

func TestParticipants(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewMutex(r.Client, "/m")
	if p := participants(t, m); len(p) != 0 {
		t.Errorf("Participants() of an unused lock = %+v", p)
	}
	l, err := m.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		next, err := MustNewMutex(r.Other, "/m").Acquire(bounded(t))
		if err != nil {
			t.Error(err)
			return
		}
		next.ReleaseInBackground()
	}()
	until(t, "two", func() bool { return len(participants(t, m)) == 2 })
	p := participants(t, m)
	if !p[0].Holds || p[1].Holds {
		t.Errorf("Participants() = %+v, want the first alone to have the lock", p)
	}
	if p[0].Role != "" || p[0].Fence != l.Fence() || p[0].Instance != clientOf(r.Client).Owner.Instance || p[0].PID != os.Getpid() || p[0].Host != clientOf(r.Client).Owner.Host {
		t.Errorf("the first is %+v, want the holder", p[0])
	}
	if p[1].Instance != clientOf(r.Other).Owner.Instance || p[1].Place <= p[0].Place || !p[0].Fence.Before(p[1].Fence) {
		t.Errorf("the second is %+v, want the waiter", p[1])
	}
	recipetest.Release(r, l)
	await(t, "the waiter", done)
}

// A client hands the lock on to its own next place before the servers know. A
// request that comes to the old place meanwhile is for the one that has the lock,
// also where the first delete of the old place is lost, and over a place that has gone since.
func TestRevokeReachesTheHolderAfterAHandOver(t *testing.T) {
	t.Parallel()
	late := func(_ *testserver.Proxy, deletes *testserver.Hold) { deletes.Release() }
	for name, tt := range map[string]struct {
		goOn  func(*testserver.Proxy, *testserver.Hold)
		twice bool // handed over
	}{
		"and the delete comes late":    {late, false},
		"and the delete is lost":       {func(p *testserver.Proxy, _ *testserver.Hold) { p.Cut() }, false},
		"and it was handed over twice": {late, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := sharedConfig(t)
			asker := MustNewMutex(open(t, cfg), "/m")
			proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
			counter := proxy.Count(cfg.Chroot + "/m")
			cfg.Servers = []string{proxy.Addr()}
			c, held, second := neighbours(t, cfg)
			looked := func(n int) {
				t.Helper()
				until(t, "the waiters to have looked at the line", func() bool {
					seen := counter.Seen()
					return seen.Unanswered == 0 && seen.Requests[testserver.OpGetChildren2] == n
				})
			}
			looked(2)
			third := make(chan *Lease, 1)
			if tt.twice {
				go func() {
					l, err := MustNewMutex(c, "/m").Acquire(bounded(t))
					if err != nil {
						t.Errorf("Acquire() = %v", err)
					}
					third <- l
				}()
				looked(3)
			}
			old := pathOf(held)
			deletes := proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(old)))
			defer deletes.Release()
			held.ReleaseInBackground()
			await(t, "the delete", deletes.Held())
			lease := <-second
			if lease == nil {
				t.FailNow()
			}
			if tt.twice {
				lease.ReleaseInBackground()
				if lease = <-third; lease == nil {
					t.FailNow()
				}
			}
			wantOpen(t, lease.Revoked())
			if err := asker.Revoke(bounded(t)); err != nil {
				t.Fatalf("Revoke() = %v", err)
			}
			tt.goOn(proxy, deletes)
			await(t, "Revoked() of the holder", lease.Revoked())
			if err := held.Release(bounded(t)); err != nil {
				t.Errorf("Release() of the first = %v", err)
			}
			releaseAll(t, []*Lease{lease})
		})
	}
}

// A place that has gone when the request comes was not asked: the next one is.
func TestRevokeAsksTheNextWhereThePlaceIsGone(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	_, held, second := neighbours(t, cfg)
	proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
	cfg.Servers = []string{proxy.Addr()}
	asker := MustNewMutex(open(t, cfg), "/m")
	request := proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(pathOf(held))))
	defer request.Release()
	done := make(chan error, 1)
	go func() { done <- asker.Revoke(bounded(t)) }()
	await(t, "the request", request.Held())
	if err := held.Release(bounded(t)); err != nil { // and it is gone
		t.Fatal(err)
	}
	lease := <-second
	if lease == nil {
		t.FailNow()
	}
	wantOpen(t, lease.Revoked())
	request.Release()
	if err := <-done; err != nil {
		t.Errorf("Revoke() = %v", err)
	}
	await(t, "Revoked() of the next", lease.Revoked())
	releaseAll(t, []*Lease{lease})
}
