package zookeeper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// pulse sends the session's empty pinned writes, one at a time: as heartbeats,
// when no other write renewed the trust lately, and as barriers.
func (s *session) pulse() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		s.mu.Lock()
		wait := time.Duration(-1) // until something changes
		if s.connected {
			wait = 0
			if s.confirmed && len(s.barriers) == 0 {
				wait = max(0, s.clock.last.Add(s.clock.heartbeat(s.held > 0)).Sub(s.cfg.now()))
			}
		}
		var waiting []chan struct{}
		if wait == 0 {
			waiting, s.barriers = s.barriers, nil
		}
		changed, gen := s.changed, s.gen
		s.mu.Unlock()

		if wait != 0 {
			timer.Reset(max(wait, 0))
			ring := timer.C
			if wait < 0 {
				ring = nil
			}
			select {
			case <-ring:
			case <-s.poke:
			case <-changed:
			case <-s.over:
				return
			}
			continue
		}
		r := s.w.send()
		if now, err := s.confirmation(); r.outcome == applied && err == nil && now == gen {
			for _, done := range waiting {
				close(done)
			}
			continue
		}
		s.mu.Lock()
		s.barriers = append(s.barriers, waiting...)
		s.mu.Unlock()
		if r.outcome == applied {
			continue // over a later connection than the one that it was meant for
		}
		select { // the answer was lost, or the server is confused
		case <-time.After(10*time.Millisecond + rand.N(40*time.Millisecond)):
		case <-s.over:
			return
		}
	}
}

// wakePulse makes the pulse look again at what is due.
func (s *session) wakePulse() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// barrier returns nil when a pinned write that was sent after the call was
// acknowledged, over the connection that it was sent over. Whatever this session sent
// earlier, over whatever connection, has then been applied or never will be, and
// deciding reads that follow see it: the server applies one session's requests in
// order, and refuses those that arrive late from a server that the session has left.
// The events of watches that were left over that connection have come, as far as they
// are older. It also proves that the quorum works.
//
// Waiting calls share a write. This one is for callers: it gives up when the
// session can no longer be trusted.
func (s *session) barrier(ctx context.Context) error {
	return s.await(ctx, s.askBarrier())
}

// finalBarrier is the barrier of what must not give up: it fails only when the
// session is over.
func (s *session) finalBarrier() error {
	done := s.askBarrier()
	select {
	case <-done:
		return nil
	case <-s.over:
		return fmt.Errorf("%w: %w", idem.ErrUnavailable, s.reason())
	}
}

// askBarrier asks the pulse for a write. The channel is closed when it was
// acknowledged.
func (s *session) askBarrier() <-chan struct{} {
	done := make(chan struct{})
	s.mu.Lock()
	s.barriers = append(s.barriers, done)
	s.mu.Unlock()
	s.wakePulse()
	return done
}
