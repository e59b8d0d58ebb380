package recipes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// ErrPermitsMismatch says that a [Semaphore] has another number of permits than
// the znode at its path; the error names both. The number is that of whoever
// used the path first, or first where it had no data; it is forgotten with the
// znode, some time after the last use. It is not to be changed while the
// semaphore is in use.
var ErrPermitsMismatch = errors.New("zookeeper: semaphores of one path do not agree on the number of permits")

// permitCount is the data of the znode that a semaphore's places are below.
type permitCount struct {
	Permits int `json:"permits"`
}

func (p permitCount) encode() []byte { return fmt.Appendf(nil, `{"permits":%d}`, p.Permits) }

// agreed compares the count with that of the parent, which it gives to one that
// has none.
//
// It reads the parent once there is a place below it, and a place is granted
// only when it has been seen again later. In between the parent cannot have been
// removed and made anew with another count, since the place would have gone with
// it. So two places are never granted on different counts.
func (p permitCount) agreed(ctx context.Context, l *Lease) error {
	t, ln := l.Table(), l.place.lineup
	data, err := session.Within(ctx, t.Session, func() ([]byte, error) { return p.settle(t, ln) })
	switch {
	case errors.Is(err, session.ErrNoParent):
		return l.Lose()
	case err != nil:
		return l.notYet(ctx, err)
	}
	var there permitCount
	if err := json.Unmarshal(data, &there); err != nil || there.Permits < 1 {
		return fmt.Errorf("%w: this one has %d, and the data of %s, which should have the number, is %.40q", ErrPermitsMismatch, p.Permits, ln.name, data)
	}
	if there != p {
		return fmt.Errorf("%w: this one has %d, %s has %d", ErrPermitsMismatch, p.Permits, ln.name, there.Permits)
	}
	return nil
}

// settle returns the parent's data. Of several that find none, the first to
// write wins and the others read that.
func (p permitCount) settle(t *held.Table, ln *lineup) ([]byte, error) {
	for {
		n, err := t.Decide(ln.path, session.OfNode)
		switch {
		case err != nil:
			return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		case !n.Exists:
			return nil, session.ErrNoParent
		case len(n.Data) > 0:
			return n.Data, nil
		}
		r := t.Write(&zk.SetDataRequest{Path: ln.path, Data: ln.data, Version: n.Version})
		if r.Outcome == session.Refused && !r.RefusedBy(zk.ErrBadVersion) && !r.RefusedBy(zk.ErrNoNode) {
			return nil, fmt.Errorf("%w: set the number of permits of %s: %w", idem.ErrUnavailable, ln.name, r.Err)
		}
		// After a lost reply as well: whatever is there next counts.
		if err := t.Settled(); err != nil {
			return nil, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		}
	}
}
