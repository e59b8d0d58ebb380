package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Without its settings a session would commit what follows a deadlock.
func TestJoinedOnMySQLDoesNotBeginWithoutItsSettings(t *testing.T) {
	t.Parallel()
	parts := serviceParts{sees: func(st *statement) {
		if strings.Contains(st.text, "SESSION autocommit = 0") {
			st.text = strings.Replace(st.text, "SESSION wait_timeout", "SESSION no_such_variable", 1)
		}
	}}
	onMariaDB(t, parts, func(s *service) {
		begin, err := s.joined.BeginJoined(context.Background(), idem.NewKeyID("merchant", "k1"), joinedRequest(driver.ClientKey))
		if begin.Tx != nil || begin.Held || !errors.Is(err, driver.ErrUnavailable) {
			s.Errorf("BeginJoined() = %+v, %v, want %v", begin, err, driver.ErrUnavailable)
		}
		s.wantNothingOpen("after the error")
	})
}

// The database keeps an idle transaction for whole seconds, and at least for as long as the option says and as its handler
// may take.
func TestJoinedIdleLimit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler, want   time.Duration
		postgres, mysql string
	}{
		"of the option":  {0, 1500 * time.Millisecond, "1500ms", "2"},
		"of the handler": {5 * time.Minute, 5*time.Minute + idleMargin, "310s", "310"},
	} {
		t.Run(name, func(t *testing.T) {
			parts := serviceParts{joined: []sqlstore.JoinedOption{sqlstore.WithIdleLimit(1500 * time.Millisecond), nil}, policy: func(p *idem.Policy) { p.HandlerTimeout = c.handler }}
			onEachService(t, parts, func(s *service) {
				s.with(s.inTx(func(gc *gin.Context, tx *sql.Tx) error {
					if left, err := idem.CheckOwner(gc); err != nil || left != c.want {
						s.Errorf("CheckOwner() = %v, %v, want %v", left, err, c.want)
					}
					var got string
					want, err := c.postgres, error(nil)
					switch s.backend.dialect {
					case dialect.PostgreSQL:
						err = tx.QueryRow("SHOW idle_in_transaction_session_timeout").Scan(&got)
					case dialect.MySQL:
						want, err = c.mysql, tx.QueryRow("SELECT @@wait_timeout").Scan(&got)
					default:
						want = ""
					}
					if err != nil || got != want {
						s.Errorf("the server ends an idle transaction after %q, %v, want %q", got, err, want)
					}
					gc.String(http.StatusCreated, "paid")
					return nil
				}))
				s.want(s.pay("k1"), paid)
			})
		})
	}
}

func TestTxOutsideOfAnExecution(t *testing.T) {
	t.Parallel()
	_, tx := sqlstore.Tx(t.Context())
	_, session := sqlstore.SessionOf(t.Context())
	if !errors.Is(tx, idem.ErrNoExecution) || !errors.Is(session, idem.ErrNoExecution) {
		t.Errorf("Tx() = %v, SessionOf() = %v, want %v", tx, session, idem.ErrNoExecution)
	}
}
