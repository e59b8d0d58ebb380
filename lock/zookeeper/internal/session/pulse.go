package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// pulse sends the session's empty pinned writes, one at a time. They are heartbeats, when
// no other write renewed the trust lately, and barriers.
type pulse struct {
	*pin

	poke     chan struct{}   // makes run look at the clock again; has room for one
	barriers []chan struct{} // asked for; guarded by status.mu
}

// Barrier sends a pinned write after the call and returns nil when it is acknowledged over
// the same connection. All earlier requests of this session, over any connection, have
// then been applied or never will be, and later deciding reads see them. The server
// applies one session's requests in order, and refuses late ones from a server left by
// the session. All older events of watches over that connection have come. A barrier also
// proves that the quorum works.
//
// Waiting calls share a write. Barrier is for callers. It gives up when the session cannot
// be trusted any more.
func (p *pulse) Barrier(ctx context.Context) error { return p.Await(ctx, p.ask()) }

// FinalBarrier is Barrier for work in the background. It fails only when the session is
// over.
func (p *pulse) FinalBarrier() error {
	select {
	case <-p.ask():
		return nil
	case <-p.over:
		return fmt.Errorf("%w: %w", idem.ErrUnavailable, p.Err())
	}
}

// ask asks for a barrier. The channel is closed when the write was acknowledged.
func (p *pulse) ask() <-chan struct{} {
	done := make(chan struct{})
	p.put(done)
	p.wakeUp()
	return done
}

func (p *pulse) put(barriers ...chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.barriers = append(p.barriers, barriers...)
}

func (p *pulse) wakeUp() {
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

// run sends what is due until the session is over.
func (p *pulse) run() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, waiting, gen, changed := p.due()
		if wait != 0 {
			ring := timer.C
			if timer.Reset(max(wait, 0)); wait < 0 {
				ring = nil
			}
			select {
			case <-ring:
			case <-p.poke:
			case <-changed:
			case <-p.over:
				return
			}
			continue
		}
		r := p.send()
		if now, err := p.confirmation(); r.Outcome == Applied && err == nil && now == gen {
			for _, done := range waiting {
				close(done)
			}
			continue
		}
		p.put(waiting...)
		if r.Outcome == Applied {
			continue // over a later connection
		}
		select { // the answer was lost, or the server is confused
		case <-time.After(10*time.Millisecond + rand.N(40*time.Millisecond)):
		case <-p.over:
			return
		}
	}
}

// due returns how long the next write may wait. If it is due now, due also returns the
// barriers that it serves. wait is negative while there is no connection. gen is the number of the
// connection, and changed is closed at the next change.
func (p *pulse) due() (wait time.Duration, barriers []chan struct{}, gen uint64, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.connected:
		wait = -1
	case p.confirmed && len(p.barriers) == 0:
		wait = max(0, p.clock.last.Add(p.clock.heartbeat(len(p.holds) > 0)).Sub(p.now()))
	}
	if wait == 0 {
		barriers, p.barriers = p.barriers, nil
	}
	return wait, barriers, p.gen, p.changed
}
