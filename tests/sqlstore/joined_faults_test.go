package sqlstore_test

import (
	"database/sql"
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"
	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// 15. An error is swallowed, and the handler answers 201.
func TestJoinedSuccessOverASwallowedFailureIsUnavailable(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		_, _ = tx.Exec("INSERT INTO nowhere VALUES (1)")
		_ = s.insert(c, tx)
		c.String(201, "paid")
		return nil
	}))
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	s.wantMisuse(driver.ErrSwallowed)
	s.wantPayments(0)
	s.wantOnePayment("k1")
}

// 16. Keys that differ in case or in trailing spaces differ, with every option of the driver.
func TestJoinedKeysThatMySQLWouldTakeForEqualDiffer(t *testing.T) {
	t.Parallel()
	for name, option := range map[string]func(*mysqldriver.Config){
		"default":           func(*mysqldriver.Config) {},
		"clientFoundRows":   func(c *mysqldriver.Config) { c.ClientFoundRows = true },
		"interpolateParams": func(c *mysqldriver.Config) { c.InterpolateParams = true },
		"parseTime":         func(c *mysqldriver.Config) { c.ParseTime = true },
		"multiStatements":   func(c *mysqldriver.Config) { c.MultiStatements = true },
	} {
		t.Run(name, func(t *testing.T) {
			onMariaDB(t, serviceParts{rewrite: func(p *pools) {
				cfg, err := mysqldriver.ParseDSN(p.dsn)
				must(t, err)
				option(cfg)
				p.write = open(t, "mysql", cfg.FormatDSN())
				p.read = p.write
			}}, func(s *service) {
				keys := []string{"abc", "ABC", `"abc "`, "Abc"}
				for _, key := range keys {
					s.want(s.pay(key), paid)
					s.want(s.pay(key), paidBefore)
				}
				s.with(s.paying(http.StatusPaymentRequired))
				s.want(s.pay("refused"), answer{status: 402, body: "paid"})
				s.want(s.pay("refused"), answer{status: 402, body: "paid", replayed: true})
				s.wantPayments(len(keys))
			})
		})
	}
}

// 17. Duplicates leave no dead rows in table and index.
func TestJoinedDuplicatesDoNotBloatTheIndex(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.PostgreSQL, serviceParts{})
	size := func() int { return get[int](t, s.pools.read, "SELECT pg_total_relation_size('idem_records')") }
	finish := s.started("k1")
	other := startService(t, s.backend, serviceParts{pools: &s.pools})
	before := size()
	for range 300 {
		other.want(other.pay("k1"), refused(409, idem.CodeInProgress))
	}
	s.want(finish(), paid)
	for range 300 {
		other.want(other.pay("k1"), paidBefore)
	}
	if after := size(); after > before+16<<10 {
		t.Errorf("the table grew from %d to %d bytes", before, after)
	}
}

// A response that the database would refuse is left out, because the payment stands.
func TestJoinedResponseThatIsTooLongIsLeftOut(t *testing.T) {
	t.Parallel()
	long := func(policy *idem.Policy) { policy.MaxResponseBody = 64 << 20 }
	slow := []idem.Option{idem.WithSettleTimeout(patience)} // the race detector looks at each byte
	// The driver writes a zero as two bytes, and the server takes max_allowed_packet.
	onMariaDB(t, serviceParts{policy: long, engine: slow, rewrite: func(p *pools) { p.write = p.with(t, "interpolateParams=true") }}, func(s *service) {
		size := get[int](s, s.pools.read, "SELECT @@max_allowed_packet DIV 2")
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if err := s.insert(c, tx); err != nil {
				return err
			}
			c.Data(http.StatusCreated, "application/octet-stream", make([]byte, size))
			return nil
		}))
		if a := s.pay("k1"); a.status != http.StatusCreated || len(a.body) != size {
			s.Errorf("answer = %d with %d bytes, want 201 with %d", a.status, len(a.body), size)
		}
		s.want(s.pay("k1"), refused(409, idem.CodeResultUnavailable))
		s.wantPayments(1)
	})
}
