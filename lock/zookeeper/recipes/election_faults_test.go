package recipes

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// The leader is cut off without knowing. The next one begins when the first
// has been told to stop.
func TestElectionLeaderCutOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3*time.Second)
	var told recorder[Event]
	old := campaign(t, MustNewElection(r.Client, "/e", "old", nil, WithListener(nil), WithListener(told.Take)))
	ctx := old.Context(bounded(t))
	var ended time.Time
	stopped := make(chan struct{})
	go func() {
		<-ctx.Done()
		ended = time.Now()
		close(stopped)
	}()
	r.Proxy.BlackHole(testserver.Both)
	next := campaign(t, MustNewElection(r.Other, "/e", "next"))
	began := time.Now()
	if !errors.Is(context.Cause(ctx), driver.ErrLeaseLost) {
		t.Errorf("the old leader's context: %v as the next one begins, want %v", context.Cause(ctx), driver.ErrLeaseLost)
	}
	await(t, "old leader stopped", stopped)
	t.Logf("%v without a leader", began.Sub(ended))
	if !old.Fence().Before(next.Fence()) {
		t.Errorf("fence %v after %v", next.Fence(), old.Fence())
	}
	var got []State
	for _, ev := range told.Wait(t, 3) {
		got = append(got, ev.State)
		if lost := ev.State == Lost; lost != errors.Is(ev.Err, driver.ErrLeaseLost) || ev.Path != "/e" || ev.Candidate != "old" {
			t.Errorf("event %+v", ev)
		}
	}
	if want := []State{Candidate, Acquired, Lost}; !slices.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
	r.Proxy.Restore()
	if err := next.Release(bounded(t)); err != nil {
		t.Errorf("Release() = %v", err)
	}
}

// Sessions are interrupted, over and over, some past their end. There is never
// a second leader whose context is good.
func TestElectionUnderInterruptions(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	server := cfg.Servers[0]
	cfg.SessionTimeout = 3 * time.Second
	var mu sync.Mutex
	var leader func() error // the error of the latest one's context
	var last driver.Fence
	terms := 0
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	var proxies []*testserver.Proxy
	var wg sync.WaitGroup
	for range 3 {
		p := testserver.StartZooKeeperProxy(t, server)
		proxies = append(proxies, p)
		cfg.Servers = []string{p.Addr()}
		e := MustNewElection(open(t, cfg), "/e", p.Addr())
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = e.RunAsLeader(ctx, func(ctx context.Context, fence driver.Fence) error {
					mu.Lock()
					if leader != nil && leader() == nil {
						t.Error("a second leader while the context of the first is good")
					}
					if last.Token >= fence.Token {
						t.Errorf("fence %v after %v", fence, last)
					}
					leader, last = ctx.Err, fence
					terms++
					mu.Unlock()
					<-ctx.Done()
					return nil
				})
			}
		})
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return terms
	}
	for i, faults := range []func(*testserver.Proxy){
		func(p *testserver.Proxy) { p.BlackHole(testserver.Both) },
		func(p *testserver.Proxy) { p.Refuse(true); p.Cut() },
		func(p *testserver.Proxy) { p.BlackHole(testserver.ToClient) },
		func(p *testserver.Proxy) { p.Freeze(testserver.Both) },
	} {
		until(t, "a leader", func() bool { return count() > i })
		for _, p := range proxies {
			p.Cut() // harmless by itself
		}
		before := count()
		e, err := currentLeader(t, cfg, server)
		if err != nil {
			t.Fatal(err)
		}
		p := proxies[slices.IndexFunc(proxies, func(p *testserver.Proxy) bool { return p.Addr() == e.Name })]
		faults(p)
		until(t, "the next leader", func() bool { return count() > before })
		p.Restore()
	}
	stop()
	wg.Wait()
}

// currentLeader asks in the name of a client that no fault touches.
func currentLeader(t testing.TB, cfg zookeeper.Config, server string) (l Participant, err error) {
	t.Helper()
	cfg.Servers, cfg.SessionTimeout = []string{server}, 60*time.Second
	c := open(t, cfg)
	until(t, "leader known", func() bool {
		l, err = MustNewElection(c, "/e", "").Leader(bounded(t))
		return !errors.Is(err, ErrNoLeader)
	})
	return l, err
}

// Somebody else ends the leader's session: that is an expiry which the client
// hears of afterwards.
func TestElectionKilledSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	e := MustNewElection(r.Client, "/e", "me")
	old := campaign(t, e)
	ctx := old.Context(context.Background())
	killSession(t, r.Client, r.Proxy)
	await(t, "context", ctx.Done())
	if !errors.Is(context.Cause(ctx), driver.ErrLeaseLost) || !errors.Is(old.Err(), driver.ErrLeaseLost) {
		t.Errorf("cause %v, Err() = %v; want ErrLeaseLost", context.Cause(ctx), old.Err())
	}
	again := campaign(t, e) // over the new session, once there is one
	if !old.Fence().Before(again.Fence()) {
		t.Errorf("fence %v after %v", again.Fence(), old.Fence())
	}
	await(t, "context of a lost office", old.Context(context.Background()).Done())
	again.ReleaseInBackground()
}

// Waiting candidates outlive their sessions as well.
func TestElectionKilledSessionOfACandidate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	leader := campaign(t, MustNewElection(r.Other, "/e", "leader"))
	e := MustNewElection(r.Client, "/e", "candidate")
	won := make(chan error)
	go func() {
		l, err := e.Campaign(bounded(t))
		if err == nil {
			l.ReleaseInBackground()
		}
		won <- err
	}()
	candidates := func(n int, but int32) (place int32) {
		t.Helper()
		until(t, "candidate", func() bool {
			p, err := MustNewElection(r.Other, "/e", "").Participants(bounded(t))
			if len(p) == n && (n < 2 || p[1].Place != but) {
				place = p[n-1].Place
			}
			return err == nil && place != 0
		})
		return place
	}
	first := candidates(2, 0)
	killSession(t, r.Client, r.Proxy)
	candidates(2, first)
	if err := leader.Release(bounded(t)); err != nil {
		t.Error(err)
	}
	if err := <-won; err != nil {
		t.Errorf("Campaign() = %v", err)
	}
}

func TestElectionKillSessionThenClose(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	l := campaign(t, MustNewElection(r.Client, "/e", "me"))
	ctx := l.Context(bounded(t))
	s := sessionOf(r.Client)
	connect := r.Proxy.HoldNext(testserver.Op(testserver.OpConnect))
	if err := testserver.KillSession(testserver.SharedZooKeeper(t)[0], s.Session.Status.ID(), password(r.Proxy)); err != nil && s.Session.Status.Err() == nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(bounded(t), 100*time.Millisecond)
	defer cancel()
	_ = r.Client.Close(short) // nobody hears it
	if ctx.Err() == nil {
		t.Error("the context is good after Close()")
	}
	connect.Release()
	campaign(t, MustNewElection(r.Other, "/e", "next")).ReleaseInBackground()
}

// Somebody deletes the candidate's place before it is known to exist.
func TestElectionPlaceDeletedDuringCreate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	path := r.Config.Chroot + "/e"
	create(t, r.Raw, path, 0) // or the first create is refused
	reply := r.Proxy.HoldNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(path+"/"+candidateRole)))
	won := make(chan *Lease)
	go func() {
		l, err := MustNewElection(r.Client, "/e", "me").Campaign(bounded(t))
		if err != nil {
			t.Errorf("Campaign() = %v", err)
		}
		won <- l
	}()
	await(t, "created", reply.Held())
	var deleted string
	until(t, "place", func() bool {
		names, _, err := r.Raw.Children(path)
		if err != nil || len(names) != 1 {
			return false
		}
		deleted = names[0]
		return r.Raw.Delete(path+"/"+deleted, -1) == nil
	})
	reply.Release()
	l := <-won
	if l == nil {
		return
	}
	if l.place.Name == deleted {
		t.Error("the place that was deleted was granted")
	}
	r.wantHeld(l)
	if err := l.Release(bounded(t)); err != nil {
		t.Error(err)
	}
}

func TestElectionPlaceDeletedInOffice(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	l := campaign(t, MustNewElection(r.Client, "/e", "me"))
	ctx := l.Context(bounded(t))
	if err := r.Raw.Delete(pathOf(l), -1); err != nil {
		t.Fatal(err)
	}
	await(t, "context", ctx.Done())
	if !errors.Is(context.Cause(ctx), driver.ErrLeaseLost) {
		t.Errorf("cause %v, want %v", context.Cause(ctx), driver.ErrLeaseLost)
	}
}
