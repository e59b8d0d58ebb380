package zookeeper

import (
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// tickOf is the tick by which a client's session reckons.
func tickOf(c *Client) time.Duration {
	s := sessionOf(c)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.tick
}

// The servers of the tests have a tick of 500 ms, and the default of 2 s leaves no
// room for a session of 2 s.
func TestShortSessionFitsTheServersTick(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.SessionTimeout, cfg.TickTime = 2*time.Second, 0
	if tick := tickOf(open(t, cfg)); tick != testTick {
		t.Errorf("tick = %v, want %v", tick, testTick)
	}
}

// A server may grant less than was asked for. The tick follows what it grants.
func TestSessionGrantedShorterFitsTheServersTick(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t, testserver.WithConfig("maxSessionTimeout=3000"))
	cfg := config(t, z.Addr())
	cfg.SessionTimeout, cfg.TickTime = 10*time.Second, 0
	c := open(t, cfg)
	if s := sessionOf(c); s.timeout() != 3*time.Second || tickOf(c) != testTick {
		t.Errorf("session of %v with a tick of %v, want 3s and %v", s.timeout(), tickOf(c), testTick)
	}
	lease, err := c.Mutex("/m").Acquire(bounded(t))
	if err != nil {
		t.Fatalf("Acquire() = %v", err)
	}
	// And so does that of the sessions that come after it.
	old := sessionOf(c)
	old.die(errGivenUp)
	<-lease.Done()
	until(t, "another session", func() bool { s := sessionOf(c); return s != nil && s != old })
	if tick := tickOf(c); tick != testTick {
		t.Errorf("tick of the next session = %v, want %v", tick, testTick)
	}
}

func TestTickIsNotProbedWithoutNeed(t *testing.T) {
	t.Parallel()
	cfg, err := Config{Servers: []string{"127.0.0.1:1"}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	if tick, err := cfg.tickFor(t.Context(), 10*time.Second); err != nil || tick != defaultTick {
		t.Errorf("tickFor(10s) = %v, %v, want %v", tick, err, defaultTick)
	}
	if _, err := cfg.tickFor(t.Context(), time.Second); err == nil {
		t.Error("tickFor(1s) = nil with nobody to ask, want an error")
	}
	cfg.TickTime = time.Second
	if tick, err := cfg.tickFor(t.Context(), time.Second); err != nil || tick != time.Second {
		t.Errorf("tickFor(1s) = %v, %v, want what was configured", tick, err)
	}
}
