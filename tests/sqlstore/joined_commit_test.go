package sqlstore_test

import (
	"cmp"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// 6. The server ends the connection in the middle of COMMIT, and has rolled back.
func TestJoinedCommitThatEndsWithTheConnectionIsProbed(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	mustExec(t, s.pools.write, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$`)
	mustExec(t, s.pools.write, "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()")
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	s.wantState("k1", driver.StateNone)
	s.wantPayments(0)
	mustExec(t, s.pools.write, "DROP TRIGGER die ON payments")
	s.wantOnePayment("k1")
}

// throughProxy has the pool for writing go through a proxy.
func throughProxy(t *testing.T, proxy **testserver.Proxy) func(*pools) {
	return func(p *pools) {
		t.Helper()
		var far pools
		far, *proxy = proxied(t, p.dsn)
		p.write, p.far = far.write, far.dsn
	}
}

// onServers runs a test on each database that is a server, through a proxy.
func onServers(t *testing.T, p serviceParts, f func(s *service, proxy *testserver.Proxy)) {
	t.Helper()
	onEachJoined(t, func(t *testing.T, b backend) {
		if b.dialect == dialect.SQLite {
			return
		}
		var proxy *testserver.Proxy
		p := p // the databases have one each
		p.rewrite = throughProxy(t, &proxy)
		f(startService(t, b, p), proxy)
	})
}

// commitRequest is COMMIT as the drivers send it.
func commitRequest(s *service) testserver.Match {
	if s.backend.dialect == dialect.PostgreSQL {
		return testserver.Contains("commit\x00")
	}
	return testserver.Contains("COMMIT")
}

// 6. COMMIT or its answer is lost, also between PgBouncer and its client.
func TestJoinedCommitWithoutAnAnswerIsProbed(t *testing.T) {
	t.Parallel()
	onServers(t, serviceParts{}, func(s *service, proxy *testserver.Proxy) {
		proxy.DropNextRequest(commitRequest(s))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantPayments(0)
		proxy.DropNextReply(commitRequest(s))
		s.want(s.pay("k1"), paid)
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(1)
	})
}

// 6. The connection is lost at each message of a payment in turn, before it arrives and after it.
func TestJoinedConnectionLostAtEachStatementPaysOnce(t *testing.T) {
	t.Parallel()
	test := func(t *testing.T, b backend) {
		var proxy *testserver.Proxy
		s := startService(t, b, serviceParts{store: []sqlstore.Option{sqlstore.WithExpiry(0)}, rewrite: func(p *pools) {
			throughProxy(t, &proxy)(p)
			p.read = p.write
		}})
		s.want(s.pay("first"), paid) // the statements are prepared then
		payments := 1
		for name, drop := range map[string]func(testserver.Match) <-chan struct{}{"request": proxy.DropNextRequest, "reply": proxy.DropNextReply} {
			for n := 1; ; n++ {
				var seen atomic.Int64
				drop(func(testserver.Request) bool { return seen.Add(1) == int64(n) })
				key := fmt.Sprintf("%s-%d", name, n)
				a := s.pay(key)
				lost := seen.Load() >= int64(n)
				if !lost { // it has fewer messages
					proxy.Restore()
				}
				s.eventually(key+" is answered", func() bool {
					if a.status != 201 {
						a = s.pay(key)
					}
					return a.status == 201
				})
				s.want(s.pay(key), paidBefore)
				payments++
				if lost {
					continue
				}
				if least := map[string]int{compounding.name: 4}[b.name]; n < cmp.Or(least, 6) {
					t.Errorf("a payment has %d messages to lose, want more", n-1)
				}
				break
			}
		}
		s.wantPayments(payments)
		for _, err := range s.saw(telemetry.EventUnknown) {
			t.Errorf("an outcome is unknown: %v", err)
		}
	}
	onEachServer(t, test)
	compounding.run(t, test)
}

// 8. The synchronous standby is gone. The client of the server gives up, which ends the wait of the
// COMMIT for the standby. The payment is there then, on the primary alone.
func TestJoinedCommitThatItsStandbyDoesNotHaveIsAnsweredAsCommitted(t *testing.T) {
	t.Parallel()
	primary := testserver.StartPostgres(t)
	replication := testserver.StartTCPProxy(t, primary.Addr())
	testserver.StartStandby(t, replication.Addr())
	s := startService(t, onPostgres("PostgreSQL", primary.URL()), serviceParts{engine: []idem.Option{idem.WithSettleTimeout(500 * time.Millisecond)}})
	mustExec(t, s.pools.write, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	mustExec(t, s.pools.write, "SELECT pg_reload_conf()")
	s.eventually("the standby is a synchronous one", func() bool {
		return holds(s.pools.read, "SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'")
	})
	answered := func(key string) {
		s.eventually("the payment is answered", func() bool {
			a := s.pay(key)
			if a != paid && a != paidBefore && a.code != string(idem.CodeUnavailable) && a.code != string(idem.CodeInProgress) {
				t.Fatalf("answer = %v", a)
			}
			return a.status == 201
		})
	}
	answered("replicated")
	replication.Refuse(true)
	replication.Cut()
	answered("alone")
	s.wantPayments(2)
}

// 9. A COMMIT into a black hole ends in limited time.
func TestJoinedCommitIntoABlackHoleEnds(t *testing.T) {
	t.Parallel()
	parts := serviceParts{engine: []idem.Option{idem.WithSettleTimeout(200 * time.Millisecond)}}
	onServers(t, parts, func(s *service, proxy *testserver.Proxy) {
		hold := proxy.HoldNext(commitRequest(s))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable)) // the probe meets the open transaction
		s.wantPayments(0)
		hold.Release()
		s.wantOnePayment("k1")
	})
	onServers(t, parts, func(s *service, proxy *testserver.Proxy) {
		hold := proxy.HoldNextReply(commitRequest(s))
		defer hold.Release()
		s.wantOnePayment("k1") // the probe of the first request may run out of time, too
	})
}

// 9. The database ends the transaction of a process that was suspended, and frees its key.
func TestJoinedKeyOfASuspendedHandlerIsFreed(t *testing.T) {
	t.Parallel()
	onServers(t, serviceParts{joined: []sqlstore.JoinedOption{sqlstore.WithIdleLimit(time.Second)}}, func(s *service, _ *testserver.Proxy) {
		finish := s.started("k1")
		other := startService(s.T, s.backend, serviceParts{pools: &s.pools})
		other.wantOnePayment("k1")
		// The engine looks what became of the key, unless the server itself says why it ended the transaction.
		if a := finish(); a != paidBefore && a.code != string(idem.CodeUnavailable) {
			s.Errorf("the suspended handler was answered %v, want %s or the payment of the other", a, idem.CodeUnavailable)
		}
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(1)
	})
}

// A constraint of the application is checked at COMMIT. The database has rolled back then, and the
// next request runs.
func TestJoinedCommitRefusedByAConstraintIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			s := startOn(t, d, serviceParts{})
			mustExec(t, s.pools.write, "CREATE TABLE accounts (id bigint PRIMARY KEY)")
			mustExec(t, s.pools.write, "ALTER TABLE payments ADD COLUMN account bigint REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED")
			s.with(s.sending(201, "pay", "UPDATE payments SET account = 7"))
			s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
			s.wantTold(telemetry.EventReleased, driver.ErrRolledBack)
			s.wantState("k1", driver.StateNone)
			s.wantPayments(0)
			s.wantOnePayment("k1")
		})
	}
}
