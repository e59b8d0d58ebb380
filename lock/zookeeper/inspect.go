package zookeeper

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

var _ driver.LockInspector = (*Locker)(nil)

// HeldBy implements [driver.LockInspector]. It reads the znode of the lock, and for a marked key
// also the one below the marker. The lock of a dead process counts as held until its session
// times out.
func (l *Locker) HeldBy(ctx context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	s, err := l.c.usable()
	if err != nil {
		return driver.Holder{}, false, err
	}
	path := l.c.cfg.lockPath(id)
	look := func(path string) (session.Hint, error) {
		return session.Within(ctx, s.session.Status, func() (session.Hint, error) { return s.session.Reads.Look(path, session.OfNode) })
	}
	n, err := look(path)
	if err == nil && n.Exists && n.Session == 0 {
		n, err = look(path + lockChild)
	}
	switch {
	case err != nil:
		return driver.Holder{}, false, fmt.Errorf("%w: lock of %s: %w", driver.ErrUnavailable, id.OperationID(), err)
	case !n.Exists:
		return driver.Holder{}, false, nil
	}
	owner := held.ParseOwner(n.Data)
	nonce, _ := driver.ParseNonce(owner.Nonce) // the zero nonce is an unknown one
	return driver.Holder{Host: owner.Host, PID: owner.PID, Nonce: nonce}, true, nil
}

// DomainOf implements [driver.LockInspector]. All keys have one domain.
func (l *Locker) DomainOf(context.Context, driver.KeyID) (string, error) { return l.c.Domain(), nil }
