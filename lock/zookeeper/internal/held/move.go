package held

import (
	"fmt"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Move announces a write of the holder that may replace the znode by another one. Until
// the write is settled, Check and the release wait. The holder has to call settle then,
// with the znode that is there. Move fails if the lease is over. settle is nil if another
// move is under way. old reports whether the znode has to be read before it is deleted,
// because it is not young.
func (l *Lease) Move() (settle func(path string, czxid int64), old bool, err error) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if over := l.Over(); over != nil {
		return nil, false, over
	}
	if l.t.Session.Status.Err() != nil || l.claim.phase != holding {
		return nil, false, fmt.Errorf("%w: mark", driver.ErrLeaseLost)
	}
	return l.location.announce(), l.suspect(), nil
}

// location is where the znode of a lease is.
type location struct {
	mu     sync.Mutex
	path   string
	czxid  int64
	moving chan struct{} // closed when the last move was settled
}

func (o *location) where() (path string, czxid int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.path, o.czxid
}

// settled is closed while no move is under way.
func (o *location) settled() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.moving
}

// announce begins a move, unless one is under way.
func (o *location) announce() (settle func(path string, czxid int64)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.moving:
	default:
		return nil
	}
	o.moving = make(chan struct{})
	return func(path string, czxid int64) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.path, o.czxid = path, czxid
		close(o.moving)
	}
}
