package sqlstore_test

import (
	"context"
	"database/sql"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A handler on MariaDB or MySQL returns while its goroutine waits in a statement, and KILL QUERY does not do what
// it is for: it arrives when the statement has ended by itself and another one is next, or it does not arrive, or
// no connection is free to send it. Nothing is paid twice. If the statement goes on, the client is told of the doubt.
// It counts the KILLs of the whole server, so it is not parallel to other tests.
func TestJoinedKillQueryThatIsLateOrLostPaysOnce(t *testing.T) {
	kill := testserver.Contains("KILL QUERY")
	waits := "DO GET_LOCK(DATABASE(), 3600)"
	for _, c := range []struct {
		name  string
		late  string // KILL QUERY arrives before the statement with this text
		lost  bool   // KILL QUERY does not arrive
		pool  int    // connections, of which the handler has two
		first answer
	}{
		{name: "before the look at the savepoint", late: "RELEASE SAVEPOINT", first: refused(503, idem.CodeUnavailable)},
		{name: "before the rollback", late: "ROLLBACK", first: refused(503, idem.CodeUnavailable)},
		{name: "before the session is given back", late: "SESSION autocommit = 1", first: refused(503, idem.CodeUnavailable)},
		{name: "lost", lost: true, first: refused(409, idem.CodeOutcomeUnknown)},
		{name: "no connection is free", pool: 2, first: refused(409, idem.CodeOutcomeUnknown)},
	} {
		for _, b := range append(backends()[1:3], compounding) {
			t.Run(c.name+"/"+b.name, func(t *testing.T) {
				t.Parallel()
				var proxy *testserver.Proxy
				limit := time.Second
				if c.late != "" {
					limit = patience // the answer waits for the statements that the test holds back, and not for the limit
				}
				s := startService(t, b, serviceParts{rewrite: throughProxy(t, &proxy), engine: []idem.Option{idem.WithSettleTimeout(limit), idem.WithStoreTimeout(limit)}, pool: c.pool})
				locker, err := s.pools.read.Conn(context.Background())
				must(t, err)
				defer locker.Close()
				lock := func(statement string) {
					if _, err := locker.ExecContext(context.Background(), statement); err != nil {
						t.Error(err)
					}
				}
				lock(waits)
				ended := make(chan struct{})
				s.with(s.inTx(func(gc *gin.Context, tx *sql.Tx) error {
					if err := s.insert(gc, tx); err != nil {
						return err
					}
					if c.pool > 0 {
						other, err := s.pools.write.Conn(context.Background())
						if err != nil {
							return err
						}
						go func() {
							<-ended
							_ = other.Close()
						}()
					}
					go func() {
						defer close(ended)
						_, _ = tx.Exec(waits)
					}()
					s.eventually("the statement runs", func() bool {
						return holds(s.pools.read, "SELECT count(*) = 1 FROM information_schema.processlist WHERE db = DATABASE() AND state LIKE 'User lock'")
					})
					gc.String(http.StatusCreated, "paid")
					return nil
				}))
				var held *testserver.Hold
				kills := func() (n int) { // of the server
					var name string
					if err := s.pools.read.QueryRow("SHOW GLOBAL STATUS LIKE 'Com_kill'").Scan(&name, &n); err != nil {
						t.Error(err)
					}
					return n
				}
				before := kills()
				if c.lost {
					proxy.DropNextRequest(kill)
				} else if c.late != "" {
					held = proxy.HoldNext(kill)
				}
				first := make(chan answer, 1)
				go func() { first <- s.pay("k1") }()
				if c.late != "" {
					<-held.Held()
					next := proxy.HoldNext(testserver.Contains(c.late))
					lock("DO RELEASE_LOCK(DATABASE())")
					<-ended
					<-next.Held()
					held.Release()
					s.eventually("the server runs KILL QUERY", func() bool { return kills() > before })
					next.Release()
				}
				s.want(<-first, c.first)
				s.wantPayments(0)
				if c.late != "" {
					s.wantOnePayment("k1")
				} else {
					lock("DO RELEASE_LOCK(DATABASE())")
					<-ended
					s.with(s.paying(http.StatusCreated))
					s.eventually("repeats are told of the doubt", func() bool {
						a := s.pay("k1")
						return a.code == string(idem.CodeOutcomeUnknown)
					})
					s.wantPayments(0)
				}
				s.wantCleanPool()
			})
		}
	}
}
