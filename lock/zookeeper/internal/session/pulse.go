package session

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// pulse sends the session's empty pinned writes, one at a time: as heartbeats, when no
// other write renewed the trust lately, and as barriers.
type pulse struct {
	*pin

	poke chan struct{} // makes run look again at what is due; has room for one

	mu       sync.Mutex // taken alone
	barriers []chan struct{}
}

// Barrier returns nil when a pinned write that was sent after the call was acknowledged,
// over the connection that it was sent over. Everything that this session sent earlier,
// over any connection, has then been applied or never will be, and deciding reads that
// follow see it. The server applies one session's requests in order, and refuses those
// that arrive late from a server that the session has left. The events of watches that
// were left over that connection have come, if they are older. A barrier also proves
// that the quorum works.
//
// Waiting calls share a write. Barrier is for callers: it gives up when the session
// cannot be trusted any more.
func (p *pulse) Barrier(ctx context.Context) error { return p.Await(ctx, p.ask()) }

// FinalBarrier is Barrier for work that must not give up. It fails only when the session
// is over.
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

func (p *pulse) take() (barriers []chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	barriers, p.barriers = p.barriers, nil
	return barriers
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
		wait, gen, changed := p.due()
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
		waiting := p.take()
		r := p.send()
		if now, err := p.confirmation(); r.Outcome == Applied && err == nil && now == gen {
			for _, done := range waiting {
				close(done)
			}
			continue
		}
		p.put(waiting...)
		if r.Outcome == Applied {
			continue // over a later connection than the one that it was meant for
		}
		select { // the answer was lost, or the server is confused
		case <-time.After(10*time.Millisecond + rand.N(40*time.Millisecond)):
		case <-p.over:
			return
		}
	}
}

// due returns how long the next write may wait. It is negative while there is no
// connection. gen is the number of the connection, and changed is closed at the next
// change.
func (p *pulse) due() (wait time.Duration, gen uint64, changed <-chan struct{}) {
	p.mu.Lock()
	asked := len(p.barriers) > 0
	p.mu.Unlock()
	st := p.status
	st.mu.Lock()
	defer st.mu.Unlock()
	switch {
	case !p.connected:
		wait = -1
	case p.confirmed && !asked:
		wait = max(0, p.clock.last.Add(p.clock.heartbeat(len(p.holds) > 0)).Sub(p.now()))
	}
	return wait, p.gen, st.changed
}
