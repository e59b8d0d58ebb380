package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// onMariaDB runs a test on MariaDB, and on MySQL if a server is named.
func onMariaDB(t *testing.T, p serviceParts, f func(s *service)) {
	t.Helper()
	onEach(t, func(t *testing.T, b backend) {
		if b.dialect == dialect.MySQL {
			f(startService(t, b, p))
		}
	})
}

// startOn starts a service on one database.
func startOn(t *testing.T, d dialect.Dialect, p serviceParts) *service {
	t.Helper()
	for _, b := range backends() {
		if b.dialect == d {
			return startService(t, b, p)
		}
	}
	t.Fatalf("no %v", d)
	return nil
}

// eventually waits for a condition.
func (s *service) eventually(what string, ok func() bool) {
	s.Helper()
	if !wait(s.T, what, ok) {
		s.FailNow()
	}
}

// wantOnePayment retries a key until it is answered, and wants one payment.
func (s *service) wantOnePayment(key string) {
	s.Helper()
	s.with(s.paying(http.StatusCreated))
	s.eventually("the retry is answered with the payment", func() bool {
		a := s.pay(key)
		if a.code != "" && a.code != string(idem.CodeUnavailable) && a.code != string(idem.CodeInProgress) {
			s.Fatalf("retry = %v", a)
		}
		return a.status == 201
	})
	s.want(s.pay(key), paidBefore)
	s.wantPayments(1)
}

// wantMisuse wants the developer to have been told once.
func (s *service) wantMisuse(want error) {
	s.Helper()
	if told := s.saw(telemetry.EventMisused); len(told) != 1 || !errors.Is(told[0], want) {
		s.Errorf("the developer was told %v, want %v", told, want)
	}
}

// wantCleanPool looks at every connection for what a transaction has left.
func (s *service) wantCleanPool() {
	s.Helper()
	for range s.pools.write.Stats().OpenConnections {
		conn, err := s.pools.write.Conn(context.Background())
		must(s, err)
		defer conn.Close()
		var autocommit, wait, global int
		err = conn.QueryRowContext(context.Background(), "SELECT @@autocommit, @@wait_timeout, @@global.wait_timeout").Scan(&autocommit, &wait, &global)
		if err == nil {
			_, err = conn.ExecContext(context.Background(), "UPDATE payments SET amount = amount")
		}
		if err != nil || autocommit != 1 || wait != global {
			s.Errorf("a connection of the pool has autocommit %d, wait_timeout %d, %v, want 1, %d", autocommit, wait, err, global)
		}
	}
}

// 3. A bank was called for 100, and then everything was rolled back.
func TestJoinedRetryForAnotherAmountIsRefusedAfterABankWasCalled(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }}, func(s *service) {
		var keys []string
		s.with(func(c *gin.Context) {
			key, err := idem.DownstreamKey(c, "bank")
			if err != nil {
				s.Error(err)
			}
			keys = append(keys, key)
			s.paying(http.StatusBadGateway)(c)
		})
		s.want(s.payAmount("k1", 100), answer{status: 502, body: "paid"})
		s.want(s.payAmount("k1", 900), refused(422, idem.CodeKeyReused))
		s.want(s.payAmount("k1", 100), answer{status: 502, body: "paid"})
		if len(keys) != 2 || keys[0] != keys[1] {
			s.Errorf("the bank saw the keys %q, want the same one twice", keys)
		}
		s.wantPayments(0)
		s.wantOnePayment("k1")
	})
}

// 3. Two bodies at once: one of them is bound.
func TestJoinedBindingDecidesBetweenTwoBodiesAtOnce(t *testing.T) {
	onEachService(t, serviceParts{}, func(s *service) {
		for i := range 20 {
			s.bindBoth(idOf(fmt.Sprint(i)), func() {})
		}
	})
}

// 3. A binding ends with the key's time to live, and every attempt extends it. Neither a shorter time nor another body
// does.
func TestJoinedBindingLastsForTheKeysTime(t *testing.T) {
	t.Parallel()
	onEachService(t, serviceParts{}, func(s *service) {
		id, ctx := idOf("k1"), context.Background()
		first, second := bodies()
		if got, err := s.joined.Bind(ctx, id, first, time.Microsecond); err != nil || got != first {
			s.Errorf("Bind() = %v, %v, want %v", got, err, first)
		}
		s.eventually("the binding expires", func() bool {
			got, err := s.joined.Bind(ctx, id, second, 10*time.Minute)
			return err == nil && got == second
		})
		for _, c := range []struct {
			fp         driver.Fingerprint
			ttl, lasts time.Duration
		}{{first, 2 * time.Hour, 10 * time.Minute}, {second, time.Hour, time.Hour}, {second, time.Minute, time.Hour}, {first, 2 * time.Hour, time.Hour}} {
			got, err := s.joined.Bind(ctx, id, c.fp, c.ttl)
			left := time.Duration(get[int64](s, s.pools.read, s.joined.names.sql("SELECT expires - {clock} FROM {bindings}"))) * time.Microsecond
			if err != nil || got != second || left > c.lasts || left < c.lasts-5*time.Minute {
				s.Errorf("Bind() for %v = %v, %v, and it lasts for %v, want %v for %v", c.ttl, got, err, left, second, c.lasts)
			}
		}
	})
}

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
	pay := func(s *service, size int) {
		s.Helper()
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
	}
	slow := []idem.Option{idem.WithSettleTimeout(patience)} // the race detector looks at each byte
	onEachService(t, serviceParts{policy: long}, func(s *service) {
		s.joined.longest = 1000
		pay(s, 2000)
	})
	// The driver writes a zero as two bytes there, and the server takes max_allowed_packet.
	onMariaDB(t, serviceParts{policy: long, engine: slow, rewrite: func(p *pools) { p.write = p.with(t, "interpolateParams=true") }}, func(s *service) {
		pay(s, s.joined.longest+1)
	})
}
