package sqlstore_test

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A handler returns while its goroutine is in a statement of an hour. Its answer, its key and its connection do
// not wait for that. Nothing is paid twice, and the handler is not blamed for what it has not done.
func TestJoinedGoroutineInAStatementHoldsNothingUp(t *testing.T) {
	t.Parallel()
	type ending = func(c *gin.Context)
	answers := func(status int) ending { return func(c *gin.Context) { c.String(status, "paid") } }
	panics := func(*gin.Context) { panic("boom") }
	run := func(s *service, strict bool) {
		sleep, running := "SELECT pg_sleep(3600), 'of %s'", "SELECT count(*) = 1 FROM pg_stat_activity WHERE state = 'active' AND datname = current_database() AND query LIKE '%%pg_sleep(3600), ''of %s''%%'"
		if s.backend.dialect == dialect.MySQL {
			sleep, running = "SELECT SLEEP(3600), 'of %s'", "SELECT count(*) = 1 FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID() AND info LIKE '%%SLEEP(3600), ''of %s''%%'"
		}
		for _, c := range []struct {
			name          string
			before        string // the statement of the goroutine
			end           ending
			first, repeat answer
			told          error
		}{
			{"success", "", answers(201), refused(503, idem.CodeUnavailable), paid, sqlstore.ErrStatementOpen},
			{"refusal", "", answers(402), answer{status: 402, body: "paid"}, answer{status: 402, body: "paid", replayed: true}, nil},
			{"failure", "", answers(500), answer{status: 500, body: "paid"}, paid, nil},
			{"panic", "", panics, answer{status: 500}, paid, nil},
			{"success-after-COMMIT", "COMMIT", answers(201), refused(409, idem.CodeOutcomeUnknown), refused(409, idem.CodeOutcomeUnknown), nil},
			{"failure-after-COMMIT", "COMMIT", answers(500), refused(409, idem.CodeOutcomeUnknown), refused(409, idem.CodeOutcomeUnknown), nil},
		} {
			if c.before != "" && (strict || s.backend.dialect != dialect.MySQL) {
				continue // it is refused there, or nothing is sent after it
			}
			ended, told := make(chan error, 1), len(s.saw(telemetry.EventReleased))
			s.with(s.inTx(func(gc *gin.Context, tx *sql.Tx) error {
				if err := s.insert(gc, tx); err != nil {
					return err
				}
				if c.before != "" {
					_, _ = tx.Exec(c.before)
				}
				go func() {
					_, err := tx.Exec(fmt.Sprintf(sleep, c.name))
					ended <- err
				}()
				s.eventually("the statement runs", func() bool {
					return holds(s.pools.read, fmt.Sprintf(running, c.name))
				})
				c.end(gc)
				return nil
			}))
			s.want(s.pay(c.name), c.first)
			select {
			case <-ended:
			case <-time.After(patience):
				s.Errorf("after a %s the statement of the goroutine goes on", c.name)
			}
			if events := s.saw(telemetry.EventReleased)[told:]; c.told != nil && (len(events) != 1 || !errors.Is(events[0], c.told)) {
				s.Errorf("after a %s the developer was told %v, want %v", c.name, events, c.told)
			}
			if events := s.saw(telemetry.EventMisused); c.before == "" && len(events) > 0 {
				s.Errorf("after a %s the handler is blamed: %v", c.name, events)
			}
			s.with(s.paying(http.StatusCreated))
			s.want(s.pay(c.name), c.repeat)
		}
		s.wantNothingOpen("at the end")
	}
	p := serviceParts{engine: []idem.Option{idem.WithSettleTimeout(time.Second), idem.WithStoreTimeout(time.Second)}}
	onEachServer(t, func(t *testing.T, b backend) { run(startService(t, b, p), false) })
	t.Run("MariaDB, strict", func(t *testing.T) { run(startOn(t, dialect.MySQL, strictly(t, p)), true) })
}

// SQLite has no way to end the statement of a goroutine. The answer does not wait for it, and nothing is paid until
// it has ended.
func TestJoinedGoroutineInAStatementOfSQLite(t *testing.T) {
	t.Parallel()
	var running, release chan struct{}
	waits := inSQLite(t, func() {
		close(running)
		<-release
	})
	short := time.Second / 2
	s := startOn(t, dialect.SQLite, serviceParts{engine: []idem.Option{idem.WithSettleTimeout(short), idem.WithStoreTimeout(short), idem.WithLockTimeout(4 * short)}})
	for n, c := range []struct {
		status int
		first  answer
	}{{201, refused(503, idem.CodeUnavailable)}, {500, answer{status: 500, body: "paid"}}} {
		running, release = make(chan struct{}), make(chan struct{})
		ended := make(chan error, 1)
		s.with(s.inTx(func(gc *gin.Context, tx *sql.Tx) error {
			if err := s.insert(gc, tx); err != nil {
				return err
			}
			go func() {
				_, err := tx.Exec("SELECT " + waits)
				ended <- err
			}()
			<-running
			gc.String(c.status, "paid")
			return nil
		}))
		key := fmt.Sprint("k", n)
		s.want(s.pay(key), c.first)
		s.with(s.paying(http.StatusCreated))
		if a := s.pay(key); a.status == http.StatusCreated {
			t.Errorf("a repeat beside the statement is answered with %v", a)
		}
		close(release)
		<-ended
		s.eventually("the repeat is paid", func() bool { return s.pay(key).status == http.StatusCreated })
		s.want(s.pay(key), paidBefore)
		s.wantPayments(n + 1)
	}
	if told := s.saw(telemetry.EventReleased); len(told) == 0 || !errors.Is(told[0], sqlstore.ErrStatementOpen) {
		t.Errorf("the developer was told %v, want %v", told, sqlstore.ErrStatementOpen)
	}
}
