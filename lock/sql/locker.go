package sqllock

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/sqllocks"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

var _ driver.Locker = (*Locker)(nil)

// Locker has an exclusive lock for each key ID. The lock is a row with a time to live. A Locker is safe for
// concurrent use. Make it with [New], and end it with [Locker.Close] or [Locker.Abandon].
type Locker struct {
	leases     *leasing.Locker
	keeper     *keeper
	log        *slog.Logger
	cleanEvery time.Duration
}

// New returns a locker in a database whose tables sqlstore.Migrate has made. The caller closes the locker, and then the
// database. New takes a lock of a key that is nobody's, renews it and gives it back, so it refuses a user who lacks a right, a
// session that commits nothing, and a standby.
//
// The error wraps [ErrNotMigrated], dialect.ErrWrong, or driver.ErrUnavailable if the database cannot be reached or refuses.
func New(ctx context.Context, db *sql.DB, d dialect.Dialect, opts ...Option) (*Locker, error) {
	cfg, err := newConfig(db, d, opts)
	if err != nil {
		return nil, err
	}
	k := newKeeper(db, &cfg)
	l := &Locker{keeper: k, log: cfg.log, cleanEvery: sqllocks.Cleaning(ctx)}
	if err := k.start(ctx); err != nil {
		return nil, err
	}
	l.leases = leasing.New(leasing.Config{Name: "lock/sql", Service: k, TTL: cfg.ttl, Now: leaseclock.Now, Log: cfg.log,
		LookTimeout: lookTimeout})
	k.heart.spawn = l.leases.Spawn
	if err := k.try(ctx); err != nil {
		l.Abandon()
		return nil, k.refused(ctx, err)
	}
	l.leases.Spawn(l.tend)
	return l, nil
}

func newKeeper(db *sql.DB, cfg *config) *keeper {
	n := names{cfg.kind, cfg.schema, cfg.prefix}
	return &keeper{db: db, names: n, ttl: cfg.ttl.Microseconds(), health: leasing.NewHealth(1, sqldialect.Spoken), unreplicated: cfg.unreplicated,
		heart: &heart{db: cfg.heartbeats, ttl: cfg.ttl.Microseconds(), patience: leasing.PatienceOf(cfg.ttl), unreplicated: cfg.unreplicated}}
}

// start finds the tables.
func (k *keeper) start(ctx context.Context) error {
	if err := k.names.find(ctx, k.db); err != nil {
		return k.refused(ctx, err)
	}
	k.text, k.heart.names = newTexts(k.names), k.names
	return nil
}

// refused is an error of New.
func (k *keeper) refused(ctx context.Context, err error) error {
	if sqldialect.Spoken(err) {
		if wrong := k.names.kind.Mismatch(ctx, k.db); wrong != nil {
			return fmt.Errorf("lock/sql: %w", wrong)
		}
	}
	return fmt.Errorf("lock/sql: %w: %w", driver.ErrUnavailable, k.explained(err))
}

// try sends every request once.
func (k *keeper) try(ctx context.Context) error {
	if err := k.nameDomain(ctx); err != nil {
		return err
	}
	lock := leasing.Lock{ID: driver.KeyID(append(nonce(), nonce()...)), Owner: driver.NewNonce()}
	if _, _, err := k.acquire(ctx, lock); err != nil {
		return err
	}
	err := k.heart.extend(ctx, []leasing.Lock{lock})[0]
	if err == nil {
		_, err = k.remove(ctx, lock, true)
	}
	for _, forTheRight := range []string{"DELETE FROM {locks} WHERE 1 = 0", "UPDATE {domain} SET fence = fence WHERE 1 = 0"} {
		if err == nil {
			_, err = k.db.ExecContext(ctx, k.names.sql(forTheRight))
		}
	}
	return err
}

func nonce() []byte {
	n := driver.NewNonce()
	return n[:]
}

// Visibility returns [driver.VisibilityShared], because other processes see the locks.
func (l *Locker) Visibility() driver.Visibility { return driver.VisibilityShared }

// TryAcquire implements [driver.Locker]. For a key without a row it takes one statement on PostgreSQL, and two on MySQL and
// MariaDB. A key that was locked within the last minute has a row, and takes two more. Its errors wrap driver.ErrLocked
// or driver.ErrUnavailable.
func (l *Locker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	return l.leases.TryAcquire(ctx, req)
}

// Wait implements [driver.Locker]. The database does not call back, so Wait looks at the row again
// and again. The pause between two looks grows from 5 ms to 250 ms. It is shorter if the lock
// expires earlier.
func (l *Locker) Wait(ctx context.Context, id driver.KeyID) error { return l.leases.Wait(ctx, id) }

// Ping implements [driver.Locker]. A standby and a read-only session fail.
func (l *Locker) Ping(ctx context.Context) error {
	err := l.leases.Open()
	if err == nil {
		_, err = l.keeper.db.ExecContext(ctx, l.keeper.text.ping)
	}
	if err != nil {
		return l.leases.Unavailable("ping", l.keeper.explained(err))
	}
	return nil
}

// Close gives back all locks that are still held. It waits until the database has acknowledged
// these releases and those in the background. If ctx ends first, Close returns an error
// once the requests under way have ended. This takes two seconds at most. The remaining
// locks then last for their time to live. Close leaves the database open.
//
// Do not call it while handlers hold locks. If a process has to end while handlers run, call
// Abandon, or let the process end without a call. The locks then outlive the process by
// their time to live, and this protects their keys.
func (l *Locker) Close(ctx context.Context) error {
	defer l.keeper.heart.close()
	return l.leases.Close(ctx)
}

// Abandon stops all goroutines and gives no lock back. All leases of this process are
// lost. In the database the locks stay for their time to live.
func (l *Locker) Abandon() {
	defer l.keeper.heart.close()
	l.leases.Abandon()
}
