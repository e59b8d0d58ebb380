package session

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// alone is a session without a server, for a bubble of synctest. Its library has stopped, so each
// request fails at once with zk.ErrConnectionClosed. Its lease clock is that of the bubble.
func alone(t *testing.T) *Session {
	t.Helper()
	cfg := config(t, "nowhere:2181")
	start, origin := time.Now(), leaseclock.NewManual().Now()
	cfg.Now = func() leaseclock.Instant { return origin.Add(time.Since(start)) }
	cfg.Dialer.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, zk.ErrNoServer }
	s, err := connect(&cfg)
	if err != nil {
		t.Fatalf("connect() = %v", err)
	}
	s.requests.conn.Close()
	for range s.ended {
	}
	t.Cleanup(func() {
		s.Trust.die(ErrClosed)
		s.Status.wg.Wait()
	})
	return s
}

// reconnect gives a session that is alone another connection, and returns its number.
func reconnect(s *Session) uint64 {
	s.requests.onState(zk.StateDisconnected)
	s.requests.onState(zk.StateHasSession)
	s.Status.mu.Lock()
	defer s.Status.mu.Unlock()
	s.Trust.clock.differ = false // no server has granted this connection anything
	s.Trust.clock.timeout = s.cfg.Timeout
	s.Trust.clock.handshake(s.Status.now(), s.cfg.Timeout)
	return s.Status.gen
}

// confirm has a write acknowledged that was sent now, over the present connection.
func confirm(s *Session) {
	gen, _ := s.requests.connection()
	s.Trust.acknowledge(gen, s.Status.now(), s.Status.now())
}

// trustOf is how long a session that is alone can be trusted after a write.
func trustOf(s *Session) time.Duration { return s.cfg.Timeout - Margin(s.cfg.Timeout, s.cfg.Tick) }
