package session

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Pulse sends the session's empty pinned writes. They are heartbeats, when no other write
// renewed the trust lately, and barriers.
type Pulse struct {
	status   *Status
	trust    *Trust
	requests *requests
	writes   *Writes
}

// Barrier sends a pinned write after the call and returns nil when it is acknowledged over
// the same connection. All earlier requests of this session, over any connection, have
// then been applied or never will be, and later deciding reads see them. The server
// applies one session's requests in order, and refuses late ones from a server left by
// the session. All older events of watches over that connection have come. A barrier also
// proves that the quorum works.
//
// Barrier is for callers. It gives up when the session cannot be trusted any more.
func (p *Pulse) Barrier(ctx context.Context) error {
	_, err := p.Present(ctx)
	return err
}

// Present is Barrier. It returns the zxid of its write. Whatever any client knew of the ensemble
// before the call has a lower one, unless the ensemble came back with older data.
func (p *Pulse) Present(ctx context.Context) (zxid int64, err error) {
	return Within(ctx, p.status, p.FinalPresent)
}

// FinalBarrier is Barrier for work in the background. It fails only when the session is
// over.
func (p *Pulse) FinalBarrier() error {
	_, err := p.FinalPresent()
	return err
}

// FinalPresent is Present for work in the background.
func (p *Pulse) FinalPresent() (zxid int64, err error) {
	for {
		gen, err := p.requests.connection()
		if err == nil {
			if r := p.writes.Do(); r.Outcome == Applied {
				if now, err := p.requests.confirmation(); err == nil && now == gen {
					return r.Zxid, nil
				}
			}
		}
		if err := p.status.Retry(); err != nil {
			return 0, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
		}
	}
}

// run makes a write over each new connection at once, and then whenever a heartbeat is
// due, until the session is over. It does not wait in the queue of Writes, which may
// be full of writes from an earlier connection.
func (p *Pulse) run() {
	for {
		wait, changed := p.due()
		if wait > 0 {
			select {
			case <-time.After(wait):
			case <-changed:
			case <-p.status.over:
				return
			}
			continue
		}
		if p.requests.send().Outcome != Applied && p.status.Pause() != nil {
			return
		}
	}
}

// due returns how long the next write may wait. changed is closed at the next change. A
// new lease may want a heartbeat earlier than due knows, so it never lets a whole
// interval between heartbeats pass.
func (p *Pulse) due() (wait time.Duration, changed <-chan struct{}) {
	p.status.mu.Lock()
	defer p.status.mu.Unlock()
	wait = heartbeatOf(p.trust.clock.timeout)
	if p.status.connected {
		wait = min(wait, p.trust.clock.last.Add(p.trust.clock.heartbeat(len(p.trust.holds) > 0)).Sub(p.status.now()))
	}
	if p.status.connected && !p.status.confirmed {
		wait = 0
	}
	return wait, p.status.changed
}
