package sqllock

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

var (
	_ driver.LockInspector = (*Locker)(nil)
	_ driver.LockInspector = (*Inspector)(nil)
)

// Inspector tells operators about locks, and takes none. It writes nothing and has no
// goroutine. It is safe for concurrent use. Make it with [NewInspector].
type Inspector struct{ keeper *keeper }

// NewInspector returns an inspector of the locks in a database. The options with an effect are
// [WithSchema] and [WithTablePrefix].
func NewInspector(ctx context.Context, db *sql.DB, d dialect.Dialect, opts ...Option) (*Inspector, error) {
	cfg, err := newConfig(db, d, opts)
	if err != nil {
		return nil, err
	}
	k := newKeeper(db, &cfg)
	if err := k.start(ctx); err != nil {
		return nil, err
	}
	return &Inspector{k}, nil
}

// HeldBy implements [driver.LockInspector]. The lock of a dead process counts as held until its
// time to live is over.
func (i *Inspector) HeldBy(ctx context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	r, err := i.keeper.look(ctx, id)
	switch {
	case err != nil:
		return driver.Holder{}, false, i.unavailable("held by", err)
	case r == nil || r.left() == 0:
		return driver.Holder{}, false, nil
	}
	return r.heldBy(), true, nil
}

// DomainOf implements [driver.LockInspector]. All keys have one domain.
func (i *Inspector) DomainOf(ctx context.Context, id driver.KeyID) (string, error) {
	var domain string
	err := i.keeper.db.QueryRowContext(ctx, i.keeper.text.domainOf, id[:]).Scan(&domain)
	if err != nil {
		return "", i.unavailable("domain", err)
	}
	return domain, nil
}

func (i *Inspector) unavailable(method string, err error) error {
	return fmt.Errorf("lock/sql: %s: %w: %w", method, driver.ErrUnavailable, i.keeper.explained(err))
}

// HeldBy implements [driver.LockInspector], as [Inspector.HeldBy] does.
func (l *Locker) HeldBy(ctx context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	return (&Inspector{l.keeper}).HeldBy(ctx, id)
}

// DomainOf implements [driver.LockInspector], as [Inspector.DomainOf] does.
func (l *Locker) DomainOf(ctx context.Context, id driver.KeyID) (string, error) {
	return (&Inspector{l.keeper}).DomainOf(ctx, id)
}
