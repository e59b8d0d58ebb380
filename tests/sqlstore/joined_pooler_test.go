package sqlstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// mixedConnector makes every second connection through a pooler, as after one was put in front of
// the database, or where one address of several is that of a pooler.
type mixedConnector struct {
	direct, pooled sqldriver.Connector
	made           atomic.Int64
}

func (c *mixedConnector) Driver() sqldriver.Driver { return c.direct.Driver() }

func (c *mixedConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	if c.made.Add(1)%2 == 0 {
		return c.direct.Connect(ctx)
	}
	return c.pooled.Connect(ctx)
}

// opaqueConnector makes connections that do not tell of which session they are.
type opaqueConnector struct{ sqldriver.Connector }

func (c opaqueConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return opaqueConn{
		conn, conn.(sqldriver.ExecerContext), conn.(sqldriver.QueryerContext), conn.(sqldriver.ConnBeginTx),
		conn.(sqldriver.NamedValueChecker), conn.(sqldriver.Pinger), conn.(sqldriver.SessionResetter), conn.(sqldriver.ConnPrepareContext),
	}, nil
}

type opaqueConn struct {
	sqldriver.Conn
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.ConnBeginTx
	sqldriver.NamedValueChecker
	sqldriver.Pinger
	sqldriver.SessionResetter
	sqldriver.ConnPrepareContext
}

func connectorTo(t *testing.T, dsn string) sqldriver.Connector {
	t.Helper()
	cfg, err := pgx.ParseConfig(dsn)
	must(t, err)
	return stdlib.GetConnector(*cfg)
}

// pooled is the database behind a pooler of transactions.
func pooled(t *testing.T, dsn string) string {
	t.Helper()
	return testserver.SharedPgBouncer(t).URL(database(t, dsn))
}

// database is the name of the database of PostgreSQL in a URL.
func database(t *testing.T, dsn string) string {
	t.Helper()
	return strings.TrimPrefix(parsed(t, dsn).Path, "/")
}

// over replaces the pool of a service.
func over(t *testing.T, c func(dsn string) sqldriver.Connector) func(*pools) {
	return func(p *pools) {
		p.write = sql.OpenDB(c(p.dsn))
		p.write.SetMaxIdleConns(8)
		t.Cleanup(func() { _ = p.write.Close() })
	}
}

// Behind a pooler a session belongs to everybody, so a refused payment may leave nothing there.
func TestJoinedLeavesNoLockInTheSessionsOfAPooler(t *testing.T) {
	t.Parallel()
	for name, connector := range map[string]func(dsn string) sqldriver.Connector{
		"pgx": func(dsn string) sqldriver.Connector { return connectorTo(t, pooled(t, dsn)) },
		"a pooler of sessions": func(dsn string) sqldriver.Connector {
			return connectorTo(t, testserver.StartPgBouncer(t, testserver.SharedPostgres(t), "pool_mode = session").URL(database(t, dsn)))
		},
		"another driver": func(dsn string) sqldriver.Connector { return opaqueConnector{connectorTo(t, pooled(t, dsn))} },
		"every second session": func(dsn string) sqldriver.Connector {
			return &mixedConnector{direct: connectorTo(t, dsn), pooled: connectorTo(t, pooled(t, dsn))}
		},
		"another driver and every second session": func(dsn string) sqldriver.Connector {
			return opaqueConnector{&mixedConnector{direct: connectorTo(t, dsn), pooled: connectorTo(t, pooled(t, dsn))}}
		},
		"no pooler": func(dsn string) sqldriver.Connector { return connectorTo(t, dsn) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startOn(t, dialect.PostgreSQL, serviceParts{rewrite: over(t, connector)})
			outcomes := []int{500, 402, 201, 503}
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				var n int
				_, _ = fmt.Sscanf(c.GetHeader("Idempotency-Key"), "key-%d", &n)
				if err := s.insert(c, tx); err != nil {
					return err
				}
				if n%7 == 0 {
					_, _ = tx.Exec("SELECT nothing FROM nowhere")
				}
				c.String(outcomes[n%len(outcomes)], "paid")
				return nil
			}))
			var clients sync.WaitGroup
			for client := range 8 {
				clients.Go(func() {
					for i := range 6 {
						s.pay(fmt.Sprintf("key-%d", 3*client+i)) // the next client has half of these keys
					}
				})
			}
			clients.Wait()
			s.wantNothingOpen("after the refusals")
			s.with(s.paying(201))
			for n := range 3*7 + 6 {
				if a := s.pay(fmt.Sprintf("key-%d", n)); a.code != "" {
					t.Errorf("the repeat of key-%d got %v", n, a)
				}
			}
			s.wantNothingOpen("after the repeats")
		})
	}
}

// A session of one client may keep a lock, so the key is held until a misused transaction is recorded.
func TestJoinedKeyOfAnEscapedTransactionStaysHeldInAnOwnSession(t *testing.T) {
	t.Parallel()
	var other *service
	run := func(t *testing.T, b backend) (during answer) {
		t.Helper()
		s := startService(t, b, serviceParts{})
		other = startService(t, b, serviceParts{pools: &s.pools})
		s.with(s.sending(201, "ROLLBACK"))
		finish := s.started("k1")
		during = other.pay("k1")
		s.want(finish(), refused(409, idem.CodeOutcomeUnknown))
		return during
	}
	if got := run(t, backends()[0]); got.code != string(idem.CodeInProgress) {
		t.Errorf("without a pooler a duplicate of the escaped transaction got %v, want in-progress", got)
	}
	if got := run(t, throughPgBouncer); got != paid {
		t.Errorf("behind a pooler a duplicate of the escaped transaction got %v, want %v, as the documentation says", got, paid)
	}
}

// A handler that unlocks what it has not locked is none behind a pooler. The next one that escapes from
// its transaction has its key held.
func TestJoinedHandlerThatUnlocksIsNoPooler(t *testing.T) {
	t.Parallel()
	for _, outcome := range []int{201, 402, 500} {
		s := startOn(t, dialect.PostgreSQL, serviceParts{})
		s.with(s.sending(outcome, "SELECT pg_advisory_unlock_all()", "pay"))
		s.want(s.pay("k1"), answer{status: outcome, body: "paid"})
		s.with(s.sending(201, "ROLLBACK"))
		finish := s.started("k2")
		s.want(s.pay("k2"), refused(409, idem.CodeInProgress))
		s.want(finish(), refused(409, idem.CodeOutcomeUnknown))
		s.wantNothingOpen("after both")
	}
}

// Servers of other makers have the functions of advisory locks for the sake of their clients. Here a
// superuser has replaced them.
func TestJoinedNoticesAdvisoryLocksThatLockNothing(t *testing.T) {
	t.Parallel()
	starts := func(stub bool) (warned bool, s *service) {
		var log syncBuffer
		s = startOn(t, dialect.PostgreSQL, serviceParts{store: []sqlstore.Option{sqlstore.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))}, rewrite: func(p *pools) {
			for _, name := range []string{"pg_try_advisory_xact_lock", "pg_try_advisory_lock", "pg_try_advisory_xact_lock_shared", "pg_advisory_unlock"} {
				if stub {
					mustExec(t, p.write, "CREATE OR REPLACE FUNCTION pg_catalog."+name+"(bigint) RETURNS boolean LANGUAGE sql VOLATILE AS 'SELECT true'")
				}
			}
		}})
		return strings.Contains(log.String(), "lock nothing"), s
	}
	if warned, _ := starts(false); warned {
		t.Error("the log warns of a server with real locks")
	}
	warned, s := starts(true)
	if !warned {
		t.Error("the log does not warn of a server without locks")
	}
	var clients sync.WaitGroup
	for range 6 {
		clients.Go(func() {
			for began := time.Now(); s.pay("k1").status != 201; {
				if time.Since(began) > patience {
					t.Error("the payment is never answered")
					return
				}
			}
		})
	}
	clients.Wait()
	s.want(s.pay("k1"), paidBefore)
	s.wantPayments(1)
}

// A pooler of statements cannot have transactions, so joined mode does not start, and says what to set.
func TestJoinedIsRefusedByAPoolerOfStatements(t *testing.T) {
	t.Parallel()
	bouncer := testserver.StartPgBouncer(t, testserver.SharedPostgres(t), "pool_mode = statement")
	b := backends()[slices.IndexFunc(backends(), func(b backend) bool { return b.dialect == dialect.PostgreSQL })]
	pools := b.migrated(t)
	over(t, func(dsn string) sqldriver.Connector { return connectorTo(t, bouncer.URL(database(t, dsn))) })(&pools)
	if _, err := b.store(t, pools).Joined(); err == nil || !strings.Contains(err.Error(), "set its pool_mode to transaction") {
		t.Errorf("Joined() = %v, want it to name pool_mode", err)
	}
}
