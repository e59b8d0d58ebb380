package session

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// pulse sends the session's empty pinned writes. They are heartbeats, when no other write
// renewed the trust lately, and barriers.
type pulse struct {
	*requests
	writes *batcher
}

// Barrier sends a pinned write after the call and returns nil when it is acknowledged over
// the same connection. All earlier requests of this session, over any connection, have
// then been applied or never will be, and later deciding reads see them. The server
// applies one session's requests in order, and refuses late ones from a server left by
// the session. All older events of watches over that connection have come. A barrier also
// proves that the quorum works.
//
// Barrier is for callers. It gives up when the session cannot be trusted any more.
func (p *pulse) Barrier(ctx context.Context) error {
	_, err := p.Present(ctx)
	return err
}

// Present is Barrier. It returns the zxid of its write. Whatever any client knew of the ensemble
// before the call has a lower one, unless the ensemble came back with older data.
func (p *pulse) Present(ctx context.Context) (zxid int64, err error) {
	return Within(ctx, p, p.FinalPresent)
}

// FinalBarrier is Barrier for work in the background. It fails only when the session is
// over.
func (p *pulse) FinalBarrier() error {
	_, err := p.FinalPresent()
	return err
}

// FinalPresent is Present for work in the background.
func (p *pulse) FinalPresent() (zxid int64, err error) {
	for {
		gen, err := p.connection()
		if err == nil {
			if r := p.writes.Write(); r.Outcome == Applied {
				if now, err := p.confirmation(); err == nil && now == gen {
					return r.Zxid, nil
				}
			}
		}
		if err := p.Retry(); err != nil {
			return 0, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		}
	}
}

// run makes a write over each new connection at once, and then whenever a heartbeat is
// due, until the session is over. It does not wait in the queue of the batcher, which may
// be full of writes from an earlier connection.
func (p *pulse) run() {
	for {
		wait, changed := p.due()
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-changed:
			case <-p.over:
				return
			}
			continue
		}
		if p.send().Outcome != Applied && p.Pause() != nil {
			return
		}
	}
}

// due returns how long the next write may wait. changed is closed at the next change. A
// new lease may want a heartbeat earlier than due knows, so it never lets a whole
// interval between heartbeats pass.
func (p *pulse) due() (wait time.Duration, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = heartbeatOf(p.clock.timeout)
	if p.connected {
		wait = min(wait, p.clock.last.Add(p.clock.heartbeat(len(p.holds) > 0)).Sub(p.now()))
	}
	if p.connected && !p.confirmed {
		wait = 0
	}
	return wait, p.changed
}
