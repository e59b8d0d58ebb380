package session

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestTickIsNotProbedWithoutNeed(t *testing.T) {
	t.Parallel()
	cfg := config(t, "127.0.0.1:1")
	cfg.Tick = 0
	if tick, err := cfg.tickFor(t.Context(), 10*time.Second); err != nil || tick != DefaultTick {
		t.Errorf("tickFor(10s) = %v, %v, want %v", tick, err, DefaultTick)
	}
	if _, err := cfg.tickFor(t.Context(), time.Second); err == nil {
		t.Error("tickFor(1s) = nil with nobody to ask, want an error")
	}
	cfg.Tick = time.Second
	if tick, err := cfg.tickFor(t.Context(), time.Second); err != nil || tick != time.Second {
		t.Errorf("tickFor(1s) = %v, %v, want what was configured", tick, err)
	}
}

// The two limits of a start are equal if the clock did not move between them. Either of them
// may end it then, and both mean an outage.
func TestAnEnsembleThatIsNotReadyIsUnavailable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(t, "nowhere:2181")
		cfg.Dialer.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		if _, err := Keep(t.Context(), cfg, Backoff{First: time.Second, Max: time.Second}); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Keep() = %v, want %v", err, driver.ErrUnavailable)
		}
	})
}

// tickOf is the tick by which a session reckons.
func tickOf(s *Session) time.Duration {
	s.Status.mu.Lock()
	defer s.Status.mu.Unlock()
	return s.Trust.clock.tick
}

// The servers of the tests have a tick of 500 ms, and the default of 2 s leaves no
// room for a session of 2 s.
func TestShortSessionFitsTheServersTick(t *testing.T) {
	t.Parallel()
	cfg := config(t, testserver.SharedZooKeeper(t)...)
	cfg.Timeout, cfg.Tick = 2*time.Second, 0
	if tick := tickOf(keep(t, cfg).Current()); tick != testTick {
		t.Errorf("tick = %v, want %v", tick, testTick)
	}
}

// A server may grant less than was asked for. The tick follows what it grants.
func TestSessionGrantedShorterFitsTheServersTick(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t, testserver.WithConfig("maxSessionTimeout=3000"))
	cfg := config(t, z.Addr())
	cfg.Timeout, cfg.Tick = 10*time.Second, 0
	k := keep(t, cfg)
	old := k.Current()
	if old.Trust.Timeout() != 3*time.Second || tickOf(old) != testTick {
		t.Errorf("session of %v with a tick of %v, want 3s and %v", old.Trust.Timeout(), tickOf(old), testTick)
	}
	// And so does that of the sessions that come after it.
	lost := make(chan struct{})
	old.Trust.Hold(func(error) { close(lost) }, func() {})
	old.Trust.die(ErrGivenUp)
	await(t, "the holder to be told", lost)
	until(t, "another session", func() bool { s := k.Current(); return s != nil && s != old })
	if tick := tickOf(k.Current()); tick != testTick {
		t.Errorf("tick of the next session = %v, want %v", tick, testTick)
	}
}

// A session that could not be prepared is not used, and its member is gone at once.
func TestSessionThatIsNotUsedLeavesNothing(t *testing.T) {
	t.Parallel()
	cfg := config(t, testserver.SharedZooKeeper(t)...)
	unfit := errors.New("unfit")
	var unused *Session
	cfg.Prepare = func(_ context.Context, s *Session) (any, error) {
		unused = s
		if ok, _, err := s.requests.conn.Exists(s.Member()); err != nil || !ok {
			t.Errorf("Exists(member) = %v, %v while the session is prepared", ok, err)
		}
		return nil, unfit
	}
	if _, err := Keep(bounded(t), cfg, Backoff{First: time.Second, Max: time.Second}); !errors.Is(err, unfit) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Keep() = %v, want %v", err, unfit)
	}
	if err := unused.Status.Err(); !errors.Is(err, unfit) {
		t.Errorf("Err() = %v after Keep() failed, want that the session ended at once", err)
	}
	if ok, _, err := rawConn(t, cfg.Servers).Exists(unused.Member()); err != nil || ok {
		t.Errorf("Exists(member) = %v, %v after Keep() failed, want none", ok, err)
	}
}

// A session may end before its first write is acknowledged, for example on a server that just joined
// its ensemble. Another one is started at once.
func TestSessionThatEndsWhileItStartsIsReplaced(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)[0]
	proxy := testserver.StartZooKeeperProxy(t, server)
	first := proxy.HoldNext(testserver.Op(testserver.OpMulti))
	go func() {
		<-first.Held()
		proxy.Refuse(true) // so the client does not take its session back
		id, passwd := proxy.Session()
		if err := testserver.KillSession(server, id, passwd); err != nil {
			t.Errorf("KillSession() = %v", err)
		}
		proxy.Refuse(false)
		first.Release()
		proxy.Cut()
	}()
	keep(t, config(t, proxy.Addr()))
}

// A client makes the znodes above its member. It may lack the right for some, if another client has
// made them.
func TestMemberBelowZnodesOfOthers(t *testing.T) {
	t.Parallel()
	raw := rawConn(t, testserver.SharedZooKeeper(t))
	for name, tt := range map[string]struct {
		made  []string // in their order; those named shut can be read only
		below string
		want  error
	}{
		"nothing is there":    {nil, "/a/b", nil},
		"all is there":        {[]string{"/a", "/a/b"}, "/a/b", nil},
		"open below shut":     {[]string{"/shut", "/shut/a"}, "/shut/a/b", nil},
		"shut":                {[]string{"/shut"}, "/shut", ErrNotPermitted},
		"two levels of shut":  {[]string{"/shut"}, "/shut/a/b", ErrNotPermitted},
		"open, and then shut": {[]string{"/a", "/a/shut"}, "/a/shut/b", ErrNotPermitted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := config(t, testserver.SharedZooKeeper(t)...)
			root := testserver.Chroot(t)
			for _, path := range append([]string{""}, tt.made...) {
				create(t, raw, root+path, 0)
			}
			for _, path := range tt.made {
				if strings.HasSuffix(path, "shut") {
					if _, err := raw.SetACL(root+path, zk.WorldACL(zk.PermRead), -1); err != nil {
						t.Fatalf("SetACL(%s) = %v", path, err)
					}
				}
			}
			cfg.Members = root + tt.below + "/members"
			k, err := Keep(bounded(t), cfg, Backoff{First: time.Second, Max: time.Second})
			if !errors.Is(err, tt.want) {
				t.Errorf("Keep() = %v, want %v", err, tt.want)
			}
			if err == nil {
				_ = k.Close(bounded(t))
			}
		})
	}
}

// Only a want of servers is an outage. What the servers refuse stays refused.
func TestOutageIsAWantOfServers(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		err         error
		now, inTime bool // whether it is an outage when the time is over, and before
	}{
		{ErrExpired, true, true},
		{ErrGivenUp, true, true},
		{errNoQuorum, true, true},
		{zk.ErrConnectionClosed, true, true},
		{errNotReady, true, true},
		{errNotConnected, true, true},
		{zk.ErrNoServer, true, true},
		{ErrNotPermitted, true, false},
		{zk.ErrAuthFailed, false, false},
		{driver.ErrUnavailable, false, false}, // it says so already
	} {
		err := fmt.Errorf("x: %w", tt.err)
		if now, inTime := outage(over, err), outage(t.Context(), err); now != tt.now || inTime != tt.inTime {
			t.Errorf("outage(%v) = %v after its time and %v before, want %v and %v", err, now, inTime, tt.now, tt.inTime)
		}
	}
}
