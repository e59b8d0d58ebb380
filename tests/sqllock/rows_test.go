package sqllock_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

const longTTL = 2 * time.Minute

// row is that of a lock.
type row struct {
	owner   []byte
	expires int64
	left    time.Duration
}

// rowOf reads the row of a lock, or nil.
func (s *site) rowOf(tb testing.TB, id driver.KeyID) *row {
	tb.Helper()
	var r row
	var now int64
	err := s.db.QueryRowContext(context.Background(), s.sql("SELECT owner, expires, {clock} FROM {locks} WHERE k = ?"), id[:]).Scan(&r.owner, &r.expires, &now)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		tb.Fatal(err)
	}
	r.left = time.Duration(r.expires-now) * time.Microsecond
	return &r
}

// waits reports whether a statement in the database waits for the row of the domain, which somebody has locked.
func (s *site) waits(tb testing.TB) (so bool) {
	tb.Helper()
	query := "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
	if s.dialect == dialect.MySQL {
		// InnoDB's own list of waits is a copy, which is not renewed while somebody asks for it again and again.
		query = "SELECT count(*) > 0 FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'UPDATE%idem_lock_domain%'"
	}
	err := s.db.QueryRowContext(tb.Context(), query).Scan(&so)
	if sqldialect.MySQLNumber(err) == 3854 { // MySQL cannot show a statement of another test that has a key ID in it
		return false
	}
	if err != nil {
		tb.Fatal(err)
	}
	return so
}

func TestFenceIsTheServersTime(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		l, req := s.locker(t), request()
		before := time.Now().Add(-time.Hour).UnixMicro()
		lease := take(t, l, req)
		if got := int64(lease.Fence().Token); got < before || got > before+2*time.Hour.Microseconds() {
			t.Errorf("Fence().Token = %d, want the time in µs, some more than %d", got, before)
		}
	})
}

// The clock was set back. A later owner has a greater fence all the same, also after the row was removed.
func TestFenceGrowsWhenTheClockIsBehind(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		l, req := s.locker(t), request()
		release(t, take(t, l, req))
		ahead := time.Now().Add(24 * time.Hour).UnixMicro()
		s.do(t, "UPDATE {locks} SET fence = ? WHERE k = ?", ahead, req.KeyID[:])
		for i := range int64(2) {
			lease := take(t, l, again(req))
			if got := int64(lease.Fence().Token); got != ahead+1+i {
				t.Errorf("Fence().Token = %d, want %d", got, ahead+1+i)
			}
			release(t, lease)
		}
		held, free := request(), request()
		take(t, l, held)
		release(t, take(t, l, free))
		s.cleaner(t, s.db)
		// The fence of the domain is raised first. Requests that have read it before are over when the row is removed.
		tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(t.Context(), s.sql("SELECT fence FROM {domain} FOR UPDATE")); err != nil {
			t.Fatal(err)
		}
		s.do(t, "UPDATE {locks} SET expires = 1 WHERE k = ?", req.KeyID[:])
		until(t, "the cleaner raises the fence of the domain", func() bool { return s.waits(t) })
		if s.rowOf(t, req.KeyID) == nil {
			t.Error("the row has gone before the fence of the domain was raised")
		}
		if err := tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		until(t, "the row is removed", func() bool { return s.rowOf(t, req.KeyID) == nil })
		if s.rowOf(t, held.KeyID) == nil || s.rowOf(t, free.KeyID) == nil {
			t.Error("the row of a lock that is held, or was free for a moment, is gone")
		}
		if got := int64(take(t, l, again(req)).Fence().Token); got != ahead+3 {
			t.Errorf("Fence().Token = %d after the row was removed, want %d", got, ahead+3)
		}
	})
}

// The clock was set back after the lock was taken, so the lock would stay for as long.
func TestLockStaysForOneTimeToLiveWhenTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		l, req := s.locker(t), request()
		take(t, l, req)
		s.do(t, "UPDATE {locks} SET expires = expires + 900000000 WHERE k = ?", req.KeyID[:])
		wantLocked(t, l, again(req))
		if left := s.rowOf(t, req.KeyID).left; left > sqllock.DefaultTTL || left < sqllock.DefaultTTL/2 {
			t.Errorf("the lock stays for %v, want at most %v", left, sqllock.DefaultTTL)
		}
	})
}

// A lease whose lock another owner has got by force is lost, and leaves that owner alone.
func TestLockOfAnotherOwner(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		l, req := s.locker(t), request()
		lease := take(t, l, req)
		theirs := driver.NewNonce()
		s.do(t, "UPDATE {locks} SET owner = ?, fence = fence + 1, expires = expires + 1000000 WHERE k = ?", theirs[:], req.KeyID[:])
		expires := s.rowOf(t, req.KeyID).expires
		if left, err := lease.Check(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Check() = %v, %v, want %v", left, err, driver.ErrLeaseLost)
		}
		wantLost(t, lease)
		release(t, lease)
		if r := s.rowOf(t, req.KeyID); !bytes.Equal(r.owner, theirs[:]) || r.expires != expires {
			t.Errorf("the lock is %x's until %d, want %x's until %d", r.owner, r.expires, theirs, expires)
		}
	})
}

// A transaction has locked the row of a lock. Its lease is not renewed, keeps its trust, and all others are renewed.
func TestLockedRowIsPassedOver(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		l, blocked, other := s.locker(t, sqllock.WithTTL(longTTL)), request(), request()
		leases := map[driver.Lease]driver.LockRequest{take(t, l, blocked): blocked, take(t, l, other): other}
		tx, err := s.db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		if _, err := tx.ExecContext(t.Context(), s.sql("SELECT k FROM {locks} WHERE k = ? FOR UPDATE"), blocked.KeyID[:]); err != nil {
			t.Fatal(err)
		}
		for lease, req := range leases {
			want := error(nil)
			if req == blocked {
				want = driver.ErrUnavailable
			}
			before := s.expires(t, req.KeyID)
			if _, err := lease.Check(t.Context()); !errors.Is(err, want) {
				t.Errorf("Check() beside the transaction = %v, want %v", err, want)
			}
			if renewed := s.expires(t, req.KeyID) > before; renewed != (want == nil) {
				t.Errorf("renewed = %t, want %t", renewed, want == nil)
			}
			if err := lease.Err(); err != nil {
				t.Errorf("Err() = %v, want the trust that it had", err)
			}
		}
	})
}

// Handlers hold all connections of the pool in transactions, and then ask whether their lock is still theirs.
func TestHeartbeatHasAConnection(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		db := open(t, s.driver(), s.dsn)
		db.SetMaxOpenConns(3)
		l, req := s.lockerOn(t, db, sqllock.WithTTL(9*time.Second)), request()
		lease := take(t, l, req)
		ctx, end := context.WithCancel(t.Context())
		defer end()
		var handlers sync.WaitGroup
		for range 4 { // two of them wait for a connection
			handlers.Go(func() {
				if tx, err := db.BeginTx(ctx, nil); err == nil {
					<-ctx.Done()
					_ = tx.Rollback()
				}
			})
		}
		for db.Stats().WaitCount < 2 {
			runtime.Gosched()
		}
		if left, err := lease.Check(t.Context()); err != nil {
			t.Errorf("Check() = %v, %v while the pool is full, want <nil>", left, err)
		}
		before := s.expires(t, req.KeyID)
		for s.expires(t, req.KeyID) < before+time.Second.Microseconds() {
			if lease.Err() != nil {
				break // the machine may be too slow for a heartbeat in time
			}
		}
		end()
		handlers.Wait()
	})
}

// expires reads a row by the test's own connection.
func (s *site) expires(tb testing.TB, id driver.KeyID) (at int64) {
	tb.Helper()
	if err := s.db.QueryRowContext(tb.Context(), s.sql("SELECT expires FROM {locks} WHERE k = ?"), id[:]).Scan(&at); err != nil {
		tb.Fatal(err)
	}
	return at
}

// A lock of a process that has died is free after its time to live. So the row's owner alone does not count.
func TestExpiredLockIsTakenOver(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		l, req := s.locker(t, sqllock.WithTTL(longTTL)), request()
		dead := take(t, l, req)
		wantLocked(t, l, again(req))
		s.do(t, "UPDATE {locks} SET expires = expires - ? WHERE k = ?", longTTL.Microseconds(), req.KeyID[:])
		if _, held, err := l.HeldBy(t.Context(), req.KeyID); held || err != nil {
			t.Errorf("HeldBy() = %v, %v of an expired lock, want false", held, err)
		}
		next := take(t, l, again(req))
		if !dead.Fence().Before(next.Fence()) {
			t.Errorf("Fence() = %s after %s, want a greater one", next.Fence(), dead.Fence())
		}
	})
}

// A lock that its owner takes anew, because the answer to the first call was lost, lasts as long as its owner trusts it from then on.
func TestLockTakenAnewHasItsWholeTime(t *testing.T) {
	t.Parallel()
	onThose(t, func(b *backend) bool { return b.dialect == dialect.PostgreSQL }, func(t *testing.T, s *site) {
		l, req := s.locker(t, sqllock.WithTTL(longTTL)), request()
		o, err := l.Offer(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		first, err := o.Retake(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.do(t, "UPDATE {locks} SET expires = expires - ? WHERE k = ?", longTTL.Microseconds()-1, req.KeyID[:])
		before := s.expires(t, req.KeyID)
		second, err := o.Retake(t.Context())
		if err != nil || second.Fence() != first.Fence() {
			t.Fatalf("Retake() = %v, %v, want the lease under %v", second, err, first.Fence())
		}
		if after := s.expires(t, req.KeyID); after-before < longTTL.Microseconds() {
			t.Errorf("the lock expires %v later, want %v", time.Duration(after-before)*time.Microsecond, longTTL)
		}
	})
}

// The primary has become a standby, and its connections stay open. The one of the heartbeats is not kept.
func TestHeartbeatLeavesAStandby(t *testing.T) {
	t.Parallel()
	// The session of a connection is set, as a standby would have it.
	onThose(t, func(b *backend) bool { return b.name == "PostgreSQL" }, func(t *testing.T, s *site) {
		config, err := pgx.ParseConfig(s.dsn)
		if err != nil {
			t.Fatal(err)
		}
		var first *pgx.Conn
		hearts := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(_ context.Context, conn *pgx.Conn) error {
			if first == nil {
				first = conn
			}
			return nil
		}))
		defer hearts.Close()
		lease := take(t, s.locker(t, sqllock.WithTTL(longTTL), sqllock.WithHeartbeatPool(hearts)), request())
		if _, err := first.Exec(t.Context(), "SET default_transaction_read_only = on"); err != nil { // nothing runs now
			t.Fatal(err)
		}
		if left, err := lease.Check(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Check() = %v, %v on a standby, want %v", left, err, driver.ErrUnavailable)
		}
		if _, err := lease.Check(t.Context()); err != nil {
			t.Errorf("Check() after that = %v, want <nil>", err)
		}
	})
}
