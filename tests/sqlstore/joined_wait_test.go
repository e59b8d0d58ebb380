package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// holdKey takes a key in a transaction that no advisory lock tells of.
func (s *service) holdKey(key string) *sql.Tx {
	s.Helper()
	tx, err := s.pools.read.Begin()
	must(s, err)
	id, nonce := idem.NewKeyID("merchant", idem.Key(key)), driver.NewNonce()
	must(s, errOf(tx.Exec(s.store.sql(`INSERT INTO {records} (k, form, rev, state, kind, route, fingerprint, attempt, domain, fence, nonce, settlement,
		repaired, created, started, settled, result_expires, key_expires, token_expires, decided_by, decided_reason)
		VALUES (?, 1, 1, 2, 0, 'pay', 'x', 1, 'joined', 1, ?, ?, 0, 1, 1, 0, 0, 0, 0, '', '')`), id[:], nonce[:], nonce[:])))
	return tx
}

// 10. With REPEATABLE READ a transaction that has waited would not see what was committed meanwhile.
func TestJoinedWinnerOfAWaitSeesWhatWasCommittedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, level := range map[string]sql.IsolationLevel{"REPEATABLE READ": sql.LevelRepeatableRead, "SERIALIZABLE": sql.LevelSerializable, "left in the session": sql.LevelDefault} {
		t.Run(name, func(t *testing.T) {
			s := startOn(t, dialect.PostgreSQL, serviceParts{joined: []sqlstore.JoinedOption{sqlstore.WithIsolation(level)}})
			if level == sql.LevelDefault {
				s.leftBehind("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
			}
			holder := s.holdKey("k1")
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				var n int
				err := tx.QueryRow("SELECT count(*) FROM payments").Scan(&n)
				if n != 1 {
					t.Errorf("the handler sees %d payments, %v, want 1", n, err)
				}
				c.String(201, "paid")
				return err
			}))
			done := make(chan answer, 1)
			go func() { done <- s.pay("k1") }()
			s.eventually("the request waits for the key", func() bool {
				return holds(s.pools.read, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()")
			})
			mustExec(t, s.pools.read, "INSERT INTO payments VALUES ('another', 1)")
			mustExec(t, s.pools.read, "SELECT pg_sleep(0.02)") // longer than a wait that does not matter
			must(t, holder.Rollback())
			s.want(<-done, paid)
		})
	}
}

// 11. The wait for a key is finite, and its limit is not that of the handler's statements.
func TestJoinedWaitForAKeyEndsAndLeavesTheHandlersLimits(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{engine: []idem.Option{idem.WithLockTimeout(2 * time.Second)}}, func(s *service) {
		limit := map[dialect.Dialect]string{dialect.PostgreSQL: "SELECT current_setting('lock_timeout') || current_setting('statement_timeout')", dialect.SQLite: "PRAGMA busy_timeout"}[s.backend.dialect]
		if limit == "" {
			limit = "SELECT @@innodb_lock_wait_timeout"
		}
		before, inside := get[string](s, s.pools.write, limit), ""
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			err := tx.QueryRow(limit).Scan(&inside)
			c.String(201, "paid")
			return err
		}))
		s.want(s.pay("k1"), paid)
		if inside != before {
			s.Errorf("the handler's limit is %q, want %q as outside", inside, before)
		}
		if s.backend.dialect == dialect.SQLite {
			return
		}
		holder := s.holdKey("k2")
		defer holder.Rollback()
		if a := s.pay("k2"); a.code != string(idem.CodeUnavailable) && a.code != string(idem.CodeInProgress) {
			s.Errorf("answer = %v, want unavailable or in progress", a)
		}
	})
}

// 11. The server's log stays quiet, and no advisory lock is left.
func TestJoinedDuplicatesLeaveNoWarningAndNoLock(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	var mu sync.Mutex
	var notices []string
	other := startService(t, s.backend, serviceParts{pools: &s.pools, rewrite: func(p *pools) {
		cfg, err := pgx.ParseConfig(p.dsn)
		must(t, err)
		cfg.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
			mu.Lock()
			defer mu.Unlock()
			notices = append(notices, n.Message)
		}
		p.write = stdlib.OpenDB(*cfg)
		t.Cleanup(func() { _ = p.write.Close() })
	}})
	finish := s.started("k1")
	other.want(other.pay("k1"), refused(409, idem.CodeInProgress))
	s.want(finish(), paid)
	holder := s.holdKey("k2")
	go func() { _ = holder.Rollback() }()
	s.eventually("the key is paid", func() bool { return other.pay("k2").status == 201 })
	other.with(other.paying(http.StatusInternalServerError))
	other.want(other.pay("k3"), answer{status: 500, body: "paid"})
	s.wantNothingOpen("after the duplicates")
	mu.Lock()
	defer mu.Unlock()
	if len(notices) > 0 {
		t.Errorf("the server said %q, want nothing", notices)
	}
}

// 12. Neither neighbours nor duplicates of a key block each other.
func TestJoinedKeysDoNotBlockTheirNeighbours(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		if s.backend.dialect == dialect.SQLite {
			return // one writer at a time
		}
		finish := s.started("k0")
		for _, key := range []string{"k1", "k2", "k3", "a", "z"} {
			s.want(s.pay(key), paid)
		}
		s.want(finish(), paid)
		s.wantPayments(6)
	})
}

// 12. Duplicates after a rollback meet deadlocks on MySQL, and start over.
func TestJoinedDuplicatesAfterARollbackPayOnce(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		services := []*service{s}
		if s.backend.dialect != dialect.SQLite {
			services = append(services, startService(s.T, s.backend, serviceParts{pools: &s.pools}), startService(s.T, s.backend, serviceParts{pools: &s.pools}))
		}
		for round := range 3 {
			key := string(rune('a' + round))
			s.with(s.paying(http.StatusInternalServerError))
			finish := s.started(key)
			s.with(s.paying(http.StatusCreated))
			var duplicates sync.WaitGroup
			for _, other := range services {
				for range 3 {
					duplicates.Go(func() {
						for {
							switch a := other.pay(key); {
							case a.status == 201:
								return
							case a.code != string(idem.CodeInProgress):
								s.Errorf("duplicate = %v, want in progress or paid", a)
								return
							}
						}
					})
				}
			}
			finish()
			duplicates.Wait()
		}
		s.wantPayments(3)
	})
}

// 13. Handlers that want a connection of their own find one, because joined mode leaves one to them
// ([TestJoinedEnginesOnOnePoolShareItsConnections]).
func TestJoinedIsRefusedOnAPoolOfOne(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		p.write.SetMaxOpenConns(1)
		if _, err := b.store(t, p).Joined(); !says(err, errSetting) || !strings.Contains(err.Error(), "SetMaxOpenConns") {
			t.Errorf("Joined() on a pool of one = %v, want a refusal with the reason", err)
		}
		s := startService(t, b, serviceParts{pool: -1}) // without a limit
		s.want(s.pay("k1"), paid)
	})
}

func TestJoinedSQLiteNeedsAPoolForReadingAndTheFileForItself(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.SQLite, serviceParts{})
	for name, store := range map[string]*store{
		"one pool":        s.backend.store(t, pools{write: s.pools.write, read: s.pools.write}, sqlstore.WithSoleProcess()),
		"other processes": s.backend.store(t, s.pools),
	} {
		if _, err := store.Joined(); !says(err, errSetting) {
			t.Errorf("%s: Joined() = %v, want a refusal with the reason", name, err)
		}
	}
}

// An operator decides about an attempt in doubt, while the next one is open in a transaction.
func TestJoinedDecisionWaitsForAnOpenTransaction(t *testing.T) {
	t.Parallel()
	parts := serviceParts{policy: func(p *idem.Policy) { p.InDoubt = idem.RunAgain() }}
	onEachService(t, parts, func(s *service) {
		if s.backend.dialect == dialect.SQLite {
			return // no statement of a handler leaves an outcome in doubt there
		}
		s.with(s.sending(201, "COMMIT"))
		s.want(s.pay("k1"), refused(409, idem.CodeOutcomeUnknown))
		id, ctx := idem.NewKeyID("merchant", "k1"), context.Background()
		unknown, err := s.joined.Get(ctx, id)
		if err != nil || unknown.State != driver.StateUnknown {
			s.Fatalf("Get() = %v, %v, want unknown", unknown.State, err)
		}
		s.with(s.paying(http.StatusCreated))
		finish := s.started("k1")
		alice := driver.Decision{By: "alice", Reason: "the bank has no payment"}
		if _, err := s.engine.Decide(ctx, id, unknown.Attempt, idem.NotApplied(), alice, &idem.Policy{}); !errors.Is(err, driver.ErrLocked) {
			s.Errorf("Decide() = %v, want %v", err, driver.ErrLocked)
		}
		// Past the lock, as an attempt to settle that has taken the lock just before.
		decided := make(chan bool, 1)
		go func() {
			res, err := s.joined.Settle(ctx, id, driver.Settlement{Attempt: unknown.Attempt, ID: driver.NewNonce(), State: driver.StateReleased, Decision: alice})
			if err != nil {
				s.Errorf("Settle() = %v, want <nil>", err)
			}
			decided <- res.Settled
		}()
		s.want(finish(), paid)
		if <-decided {
			s.Error("the decision about the earlier attempt was taken, although the next one has paid")
		}
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(1)
	})
}
