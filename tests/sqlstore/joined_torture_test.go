package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// killTransaction ends the session of an open transaction, if there is one.
func (s *service) killTransaction(ctx context.Context) {
	if s.backend.dialect == dialect.PostgreSQL {
		_, _ = s.pools.read.ExecContext(ctx, "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity "+
			"WHERE datname = current_database() AND backend_xid IS NOT NULL AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1) one")
		return
	}
	var id int64
	if err := s.pools.read.QueryRowContext(ctx, "SELECT p.id FROM information_schema.processlist p JOIN information_schema.innodb_trx t ON t.trx_mysql_thread_id = p.id "+
		"WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID() ORDER BY rand() LIMIT 1").Scan(&id); err == nil {
		_, _ = s.pools.read.ExecContext(ctx, fmt.Sprint("KILL ", id))
	}
}

// TestJoinedPaysOnceWhileConnectionsAreCut cuts the connections of three instances at any moment, and
// kills the sessions of their transactions. The instances have different isolation levels, and their
// handlers panic and go on after errors.
func TestJoinedPaysOnceWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	enough, _ := kills(t, envKills, 10)
	parts := serviceParts{engine: []idem.Option{idem.WithSettleTimeout(time.Second)}}
	onServers(t, parts, func(s *service, proxy *testserver.Proxy) {
		proxies := []*testserver.Proxy{proxy, nil, nil}
		services := instancesOf(s, func(n int) serviceParts {
			parts.rewrite = throughProxy(s.T, &proxies[n])
			return parts
		})
		for _, instance := range services {
			instance.with(instance.inTx(func(c *gin.Context, tx *sql.Tx) error {
				steps := []func() error{func() error { return payUniquely(c, tx) }}
				switch rand.IntN(8) {
				case 0:
					steps = append(steps, func() error { panic("boom") })
				case 1:
					steps = append(steps, func() error { _, _ = tx.Exec("SELECT nothing FROM nowhere"); return nil })
				}
				rand.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
				for _, step := range steps {
					if err := step(); err != nil {
						return err
					}
				}
				return nil
			}))
		}
		ctx, stop := context.WithCancel(context.Background())
		var cutter sync.WaitGroup
		var cuts atomic.Int64
		cutter.Go(func() {
			tick := time.NewTicker(8 * time.Millisecond)
			defer tick.Stop()
			for ctx.Err() == nil {
				<-tick.C
				p := proxies[rand.IntN(3)]
				var fired <-chan struct{}
				switch rand.IntN(5) {
				case 0:
					p.Cut()
					cuts.Add(1)
					continue
				case 1:
					s.killTransaction(ctx)
					cuts.Add(1)
					continue
				case 2:
					fired = p.DropNextReply(commitRequest(s))
				case 3:
					fired = p.DropNextRequest(commitRequest(s))
				default:
					fired = p.DropNextReply(testserver.Contains("payments"))
				}
				select {
				case <-fired:
					cuts.Add(1)
				case <-time.After(time.Second): // the connection has ended before the reply that was to be lost
				case <-ctx.Done():
				}
			}
		})
		h := torture(s.T, services, func(int) bool { return cuts.Load() < int64(enough) })
		stop()
		cutter.Wait()
		h.check(s.T, s)
		s.wantPayments(len(h.final))
	})
}

// misuse is something that a handler must not do.
type misuse = func(*gin.Context, *sql.Tx) error

// raw sends statements and ignores their errors.
func raw(statements ...string) misuse {
	return func(_ *gin.Context, tx *sql.Tx) error {
		for _, statement := range statements {
			_, _ = tx.Exec(statement)
		}
		return nil
	}
}

// ending are statements that end a transaction of PostgreSQL.
var ending = [][]string{
	{"COMMIT"}, {"ROLLBACK"}, {"ROLLBACK", "BEGIN"}, {"COMMIT", "BEGIN"}, {"COMMIT AND CHAIN"}, {"END"}, {"PREPARE TRANSACTION 'p'"},
}

// going leave a transaction of PostgreSQL open, or failed.
var going = [][]string{
	{}, {"BEGIN"}, {"SET autocommit = 1"},
	{"SELECT nothing FROM nowhere"}, {"SAVEPOINT a", "ROLLBACK TO SAVEPOINT a"}, {"RELEASE SAVEPOINT nothing"},
	{"CREATE TABLE IF NOT EXISTS notes (x INT)"}, {"ANALYZE"}, {"ANALYZE TABLE payments"}, {"LOCK TABLES payments WRITE", "UNLOCK TABLES"},
	{"INSERT INTO taken VALUES (1)"}, {"INSERT OR ROLLBACK INTO taken VALUES (1)"}, {"SET CONSTRAINTS ALL IMMEDIATE"},
}

// alone are not mixed with others. [Joined] names what is not covered if they follow a ROLLBACK.
var alone = []misuse{
	raw("DISCARD ALL"), raw("SELECT pg_advisory_unlock_all()"), raw("SELECT pg_terminate_backend(pg_backend_pid())"), raw("KILL CONNECTION_ID()"),
	func(_ *gin.Context, tx *sql.Tx) error { return tx.Commit() },
	func(_ *gin.Context, tx *sql.Tx) error { return tx.Rollback() },
	func(c *gin.Context, _ *sql.Tx) error { idem.KeepWrites(c); return nil },
	func(_ *gin.Context, tx *sql.Tx) error { // leaves rows open, which is the misuse
		_, err := tx.Query("SELECT op FROM payments UNION ALL SELECT op FROM payments UNION ALL SELECT 'x'")
		return err
	},
	func(_ *gin.Context, tx *sql.Tx) error { // a cancelled statement
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_, _ = tx.ExecContext(ctx, "UPDATE payments SET amount = amount")
		return nil
	},
}

// TestJoinedMisuseNeverPaysTwice has handlers do everything that they must not do, before and after
// they pay, and answer in every way. The clients repeat each key, on three instances. The last one has
// strict connections.
func TestJoinedMisuseNeverPaysTwice(t *testing.T) {
	t.Parallel()
	n, _ := kills(t, envKills, 4)
	onEachService(t, serviceParts{}, func(s *service) {
		if s.backend.dialect == dialect.SQLite { // it pays one after the other
			s.misuse(t, 4*n, false)
			return
		}
		s.misuse(t, 10*n, false)
	})
	t.Run("SQLite, strict", func(t *testing.T) {
		startOn(t, dialect.SQLite, strictly(t, serviceParts{})).misuse(t, 4*n, true)
	})
}

// misuse tries every misuse with some keys.
func (s *service) misuse(t *testing.T, keys int, strict bool) {
	t.Helper()
	mustExec(s, s.pools.write, "CREATE TABLE late (op VARCHAR(64) NOT NULL)")
	mustExec(s, s.pools.write, "CREATE TABLE taken (x INT PRIMARY KEY)")
	mustExec(s, s.pools.write, "INSERT INTO taken VALUES (1)")
	var left sync.WaitGroup
	late := func(c *gin.Context, tx *sql.Tx) error { // keeps the transaction
		x, _ := idem.FromContext(c)
		left.Go(func() {
			_, _ = tx.Exec(fmt.Sprintf("INSERT INTO late (op) VALUES ('%s')", x.OperationID))
			_ = tx.Commit()
		})
		return nil
	}
	failing := func(c *gin.Context, tx *sql.Tx) error { // it refuses or fails after it has paid
		err := s.insert(c, tx)
		c.String([]int{402, 500}[rand.IntN(2)], "sorry")
		return err
	}
	services := instancesOf(s, func(n int) serviceParts {
		if n == len(levels)-1 {
			return strictly(t, serviceParts{})
		}
		return serviceParts{}
	})
	for n, instance := range services {
		mixed := []misuse{func(*gin.Context, *sql.Tx) error { panic("boom") }}
		for _, statements := range going {
			mixed = append(mixed, raw(statements...))
		}
		single := append(slices.Clone(alone), late)
		// Behind a pooler a duplicate may run beside a handler that has ended its transaction and goes
		// on. A strict connection keeps it from writing.
		if strict || n == len(levels)-1 || s.backend.name != throughPgBouncer.name {
			for _, statements := range ending {
				mixed = append(mixed, raw(statements...))
			}
			single = append(single, raw("ROLLBACK AND CHAIN"))
		}
		instance.with(instance.inTx(func(c *gin.Context, tx *sql.Tx) error {
			steps := []misuse{payUniquely}
			if rand.IntN(4) == 0 {
				steps[0] = failing
			}
			if rand.IntN(3) == 0 {
				steps = append(steps, single[rand.IntN(len(single))])
			} else {
				steps = append(steps, mixed[rand.IntN(len(mixed))], mixed[rand.IntN(len(mixed))])
			}
			rand.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
			for _, step := range steps {
				_ = step(c, tx) // swallowed
			}
			return nil
		}))
	}
	h := torture(s.T, services, func(n int) bool { return n < keys })
	left.Wait()
	h.check(s.T, s)
	if s.backend.dialect == dialect.MySQL {
		s.wantCleanPool()
	}
}
