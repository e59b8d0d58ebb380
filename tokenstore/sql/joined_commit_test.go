package sqlstore

import (
	"net/url"
	"strings"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// 6. The server ends the connection in the middle of COMMIT, and has rolled back.
func TestJoinedCommitThatEndsWithTheConnectionIsProbed(t *testing.T) {
	s := startOn(t, PostgreSQL(), serviceParts{})
	mustExec(t, s.pools.write, `CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$`)
	mustExec(t, s.pools.write, "CREATE CONSTRAINT TRIGGER die AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION die()")
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	s.wantState("k1", idem.StateNone)
	s.wantPayments(0)
	mustExec(t, s.pools.write, "DROP TRIGGER die ON payments")
	s.wantOnePayment("k1")
}

// throughProxy has the pool for writing go through a proxy.
func throughProxy(t *testing.T, proxy **testserver.Proxy) func(*pools) {
	return func(p *pools) {
		t.Helper()
		if strings.HasPrefix(p.dsn, "postgres") {
			u, err := url.Parse(p.dsn)
			if err != nil {
				t.Fatal(err)
			}
			*proxy = testserver.StartTCPProxy(t, u.Host)
			u.Host = (*proxy).Addr()
			p.write = open(t, "pgx", u.String())
			return
		}
		cfg, err := mysqldriver.ParseDSN(p.dsn)
		if err != nil {
			t.Fatal(err)
		}
		*proxy = testserver.StartTCPProxy(t, cfg.Addr)
		cfg.Addr = (*proxy).Addr()
		p.write = open(t, "mysql", cfg.FormatDSN())
	}
}

// onServers runs a test on each database that is a server, through a proxy.
func onServers(t *testing.T, p serviceParts, f func(s *service, proxy *testserver.Proxy)) {
	t.Helper()
	onEach(t, func(t *testing.T, b backend) {
		if b.dialect == SQLite() {
			return
		}
		var proxy *testserver.Proxy
		p.rewrite = throughProxy(t, &proxy)
		f(startService(t, b, p), proxy)
	})
}

// commitRequest is COMMIT as the drivers send it.
func commitRequest(s *service) testserver.Match {
	if s.backend.dialect == PostgreSQL() {
		return testserver.Contains("commit\x00")
	}
	return testserver.Contains("COMMIT")
}

// 6. The answer to COMMIT is lost, as PgBouncer loses it.
func TestJoinedCommitWhoseAnswerIsLostIsAnsweredAsCommitted(t *testing.T) {
	onServers(t, serviceParts{}, func(s *service, proxy *testserver.Proxy) {
		proxy.DropNextReply(commitRequest(s))
		s.want(s.pay("k1"), paid)
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(1)
	})
}

func TestJoinedCommitThatNeverArrivesIsRolledBack(t *testing.T) {
	onServers(t, serviceParts{}, func(s *service, proxy *testserver.Proxy) {
		proxy.DropNextRequest(commitRequest(s))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		s.wantOnePayment("k1")
	})
}

// 9. A COMMIT into a black hole ends in limited time.
func TestJoinedCommitIntoABlackHoleEnds(t *testing.T) {
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
		s.want(s.pay("k1"), paid)
		s.wantPayments(1)
	})
}

// 9. The database ends the transaction of a process that was suspended, and frees its key.
func TestJoinedKeyOfASuspendedHandlerIsFreed(t *testing.T) {
	onServers(t, serviceParts{joined: []JoinedOption{WithIdleLimit(time.Second)}}, func(s *service, _ *testserver.Proxy) {
		finish := s.started("k1")
		other := startService(s.T, s.backend, serviceParts{pools: &s.pools})
		other.wantOnePayment("k1")
		s.want(finish(), refused(503, idem.CodeUnavailable))
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(1)
	})
}
