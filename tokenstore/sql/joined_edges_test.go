package sqlstore

import (
	"database/sql"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A constraint of the application is checked at COMMIT. The database has rolled back then, and the
// next request runs.
func TestJoinedCommitRefusedByAConstraintIsRolledBack(t *testing.T) {
	t.Parallel()
	for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.SQLite} {
		t.Run(string(d), func(t *testing.T) {
			s := startOn(t, d, serviceParts{})
			mustExec(t, s.pools.write, "CREATE TABLE accounts (id bigint PRIMARY KEY)")
			mustExec(t, s.pools.write, "ALTER TABLE payments ADD COLUMN account bigint REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED")
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				err := s.insert(c, tx)
				_, updated := tx.Exec("UPDATE payments SET account = 7")
				c.String(201, "paid")
				return errors.Join(err, updated)
			}))
			s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
			if told := s.saw(telemetry.EventReleased); len(told) != 1 || !errors.Is(told[0], driver.ErrRolledBack) {
				t.Errorf("released because of %v, want %v", told, driver.ErrRolledBack)
			}
			s.wantState("k1", driver.StateNone)
			s.wantPayments(0)
			s.wantOnePayment("k1")
		})
	}
}

// CheckOwner is the gate before a call to another system. It is closed once the transaction has gone.
func TestJoinedCheckOwnerAfterTheTransactionIsLost(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		check := func(statement string, want error) {
			s.Helper()
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				if _, err := idem.CheckOwner(c); err != nil {
					s.Errorf("CheckOwner() in the transaction = %v, want <nil>", err)
				}
				_, _ = tx.Exec(statement)
				if _, err := idem.CheckOwner(c); !errors.Is(err, want) {
					s.Errorf("CheckOwner() after %s = %v, want %v", statement, err, want)
				}
				return errors.New("give up")
			}))
			if a := s.pay(statement); a.status < 400 {
				s.Errorf("the answer after %s is %v, want an error", statement, a)
			}
		}
		check("ROLLBACK", driver.ErrEscaped)
		if s.backend.dialect == dialect.PostgreSQL {
			check("INSERT INTO nowhere VALUES (1)", driver.ErrUnavailable)
		}
		s.wantPayments(0)
	})
}

// A handler that calls other systems does not run if its fingerprint cannot be bound.
func TestJoinedHandlerDoesNotRunWithoutItsBinding(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		s.with(s.paying(http.StatusBadGateway))
		s.want(s.pay("k1"), answer{status: 502, body: "paid"})
		runs := s.runs
		mustExec(s, s.pools.write, s.joined.names.sql("UPDATE {bindings} SET fingerprint = ?"), []byte("short"))
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		mustExec(s, s.pools.write, "DROP TABLE idem_bindings")
		s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
		if s.runs != runs {
			s.Errorf("the handler ran %d more times, want 0", s.runs-runs)
		}
		s.wantPayments(0)
	})
}

func TestJoinedStoreThatIsReadOnly(t *testing.T) {
	t.Parallel()
	ctx, id := t.Context(), idem.NewKeyID("merchant", "k1")
	b := onSQLite
	j, err := b.store(t, b.migrated(t), WithReadOnly(), WithSoleProcess()).Joined()
	must(t, err)
	_, begin := j.BeginJoined(ctx, id, joinedRequest(driver.ClientKey))
	_, bind := j.Bind(ctx, id, driver.Fingerprint{Version: 1}, time.Hour)
	_, probe := j.Probe(ctx, id)
	for method, err := range map[string]error{"BeginJoined": begin, "Bind": bind, "Probe": probe} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s() = %v, want %v", method, err, ErrReadOnly)
		}
	}
}
