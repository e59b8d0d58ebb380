package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// optional is a service whose clients need not send keys yet.
var optional = serviceParts{config: exchange.Config{OptionalKey: true}}

// payWithoutKey sends an order without a key. The name is that of its payment.
func (s *service) payWithoutKey(name string) answer {
	r := httptest.NewRequest(http.MethodPost, "/pay?op="+name, strings.NewReader(`{"amount":100}`))
	r.Header.Set("Content-Type", "application/json")
	return s.send(r)
}

// insertNamed writes the payment of an order.
func insertNamed(c *gin.Context, tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}) error {
	_, err := tx.ExecContext(c.Request.Context(), fmt.Sprintf("INSERT INTO payments (op, amount) VALUES ('%s', 100)", c.Query("op")))
	return err
}

// payingNamed is paying for orders without a key.
func (s *service) payingNamed(status int) gin.HandlerFunc {
	return s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		err := insertNamed(c, tx)
		if err == nil {
			c.String(status, "paid")
		}
		return err
	})
}

// named counts the payments of an order.
func (s *service) named(name string) int {
	s.Helper()
	return get[int](s, s.pools.read, fmt.Sprintf("SELECT count(*) FROM payments WHERE op = '%s'", name))
}

// A request without a key commits what its handler writes, as often as it comes, and leaves no record. The same handler serves
// those with a key.
func TestJoinedWithoutKeyCommitsWithoutARecord(t *testing.T) {
	t.Parallel()
	onEachService(t, optional, func(s *service) {
		s.with(s.payingNamed(http.StatusCreated))
		for n := range 3 {
			s.want(s.payWithoutKey(fmt.Sprint("order-", n)), paid)
		}
		s.want(s.payWithoutKey("order-0"), paid)
		s.wantPayments(4)
		if n := get[int](s, s.pools.read, s.store.sql("SELECT count(*) FROM {records}")); n > 0 {
			s.Errorf("%d records, want none", n)
		}
		s.want(s.pay("k1"), paid)
		s.want(s.pay("k1"), paidBefore)
		s.wantPayments(5)
		s.wantNothingOpen("after the payments")
		if s.backend.dialect == dialect.MySQL {
			s.wantCleanPool()
		}
		if all := s.engine.WithoutKey(); len(all) != 1 || all[0].Count != 4 || all[0].Route != "POST /pay" {
			s.Errorf("WithoutKey() = %+v, want 4 of POST /pay", all)
		}
		s.wantMisuse(nil)
	})
}

// Every other answer leaves nothing, and reaches the client.
func TestJoinedWithoutKeyFailureRollsBack(t *testing.T) {
	t.Parallel()
	onEachService(t, optional, func(s *service) {
		for name, tt := range map[string]struct {
			fail func(c *gin.Context)
			want answer
		}{
			"500":      {func(c *gin.Context) { c.String(500, "sorry") }, answer{status: 500, body: "sorry"}},
			"402":      {func(c *gin.Context) { c.String(402, "poor") }, answer{status: 402, body: "poor"}},
			"422":      {func(c *gin.Context) { c.String(422, "no") }, answer{status: 422, body: "no"}},
			"429":      {func(c *gin.Context) { c.String(429, "busy") }, answer{status: 429, body: "busy"}},
			"NoEffect": {func(c *gin.Context) { idem.NoEffect(c); c.String(200, "nothing") }, answer{status: 200, body: "nothing"}},
			"panic":    {func(*gin.Context) { panic("boom") }, answer{status: 500}},
			"failed-statement": {func(c *gin.Context) {
				if tx, err := sqlstore.Tx(c); err == nil {
					_, _ = tx.Exec("INSERT INTO nowhere VALUES (1)")
				}
				c.String(503, "sorry")
			}, answer{status: 503, body: "sorry"}},
		} {
			s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
				err := insertNamed(c, tx)
				tt.fail(c)
				return err
			}))
			s.want(s.payWithoutKey(name), tt.want)
		}
		s.wantPayments(0)
		s.wantMisuse(nil)
		s.with(func(c *gin.Context) {
			idem.KeepWrites(c)
			s.payingNamed(http.StatusPaymentRequired)(c)
		})
		s.want(s.payWithoutKey("kept"), answer{status: 402, body: "paid"})
		s.wantPayments(1)
		s.wantNothingOpen("after the failures")
	})
}

// A handler that goes on after a failed statement commits nothing where the database or a strict connection
// refuses that with a key.
func TestJoinedWithoutKeyOverAFailedStatement(t *testing.T) {
	t.Parallel()
	swallowing := func(s *service) {
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			err := insertNamed(c, tx)
			_, _ = tx.Exec("SELECT nothing FROM nowhere")
			c.String(201, "paid")
			return err
		}))
		s.want(s.payWithoutKey("order"), refused(503, idem.CodeUnavailable))
		s.wantMisuse(driver.ErrSwallowed)
		s.wantPayments(0)
		s.wantNothingOpen("after the failed statement")
	}
	onEachService(t, optional, func(s *service) {
		if s.backend.dialect == dialect.PostgreSQL {
			swallowing(s)
		}
	})
	onEachJoined(t, func(t *testing.T, b backend) {
		if b.name != throughPgBouncer.name {
			swallowing(startService(t, b, strictly(t, optional)))
		}
	})
}

// The transaction has the isolation, the idle limit and the bound of one with a key.
func TestJoinedWithoutKeyHasTheLimitsOfItsPool(t *testing.T) {
	t.Parallel()
	p := optional
	p.joined = []sqlstore.JoinedOption{sqlstore.WithIsolation(sql.LevelSerializable), sqlstore.WithIdleLimit(90 * time.Second)}
	p.policy = func(p *idem.Policy) { p.HandlerTimeout = 5 * time.Minute }
	onEachServer(t, func(t *testing.T, b backend) {
		p := p
		p.pool = 2
		s := startService(t, b, p)
		isolation, idle, wantIdle := "SHOW transaction_isolation", "SHOW idle_in_transaction_session_timeout", "310s"
		if b.dialect == dialect.MySQL {
			isolation, idle, wantIdle = "SELECT LOWER(@@tx_isolation)", "SELECT @@SESSION.wait_timeout", "310"
			if !strings.Contains(get[string](s, s.pools.read, "SELECT VERSION()"), "MariaDB") {
				isolation = "SELECT LOWER(@@transaction_isolation)"
			}
		}
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			var level, limit string
			if b.dialect == dialect.MySQL { // whose variable is that of the session: a plain read locks at this level only
				level = "serializable"
				if err := tx.QueryRow(idle).Scan(&limit); err != nil {
					return err
				}
			} else if err := errors.Join(tx.QueryRow(isolation).Scan(&level), tx.QueryRow(idle).Scan(&limit)); err != nil {
				return err
			}
			if left, err := idem.CheckOwner(c); err != nil || left != 310*time.Second {
				s.Errorf("CheckOwner() = %v, %v, want 310s", left, err)
			}
			if level != "serializable" || limit != wantIdle {
				s.Errorf("the transaction is %s and may be idle for %s, want serializable and %s", level, limit, wantIdle)
			}
			if err := insertNamed(c, tx); err != nil {
				return err
			}
			// The only transaction of the pool is this one.
			short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			defer cancel()
			_, without := s.joined.BeginWithoutKey(short, 0)
			_, with := s.joined.BeginJoined(short, idOf("k1"), joinedRequest(driver.ClientKey))
			for _, err := range []error{without, with} {
				if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
					s.Errorf("a transaction beside the only one of the pool = %v, want %v", err, driver.ErrUnavailable)
				}
			}
			c.String(201, "paid")
			return nil
		}))
		s.want(s.payWithoutKey("order"), paid)
		s.wantNothingOpen("after the payment")
		s.pools.write.SetMaxOpenConns(3)
		s.want(s.payWithoutKey("another"), refused(503, idem.CodeUnavailable))
		s.pools.write.SetMaxOpenConns(2)
		s.wantPayments(1)
	})
}

// A serialisation failure runs the handler again.
func TestJoinedWithoutKeyConflictRunsAgain(t *testing.T) {
	t.Parallel()
	p := optional
	p.engine = []idem.Option{idem.WithConflictRetries(1)}
	onEachServer(t, func(t *testing.T, b backend) {
		s := startService(t, b, p)
		raise := "DO $$ BEGIN RAISE EXCEPTION 'a conflict' USING ERRCODE = '40001'; END $$"
		if b.dialect == dialect.MySQL {
			raise = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213"
		}
		runs := 0
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if err := insertNamed(c, tx); err != nil {
				return err
			}
			if runs++; runs == 1 {
				_, err := tx.Exec(raise)
				_ = c.Error(err)
				return err
			}
			c.String(201, "paid")
			return nil
		}))
		s.want(s.payWithoutKey("order"), paid)
		if s.wantPayments(1); runs != 2 {
			t.Errorf("the handler ran %d times, want twice", runs)
		}
	})
}

// tellsTheTruth compares what a client was told with the payments of its order. committed says that the handler has committed by
// the methods of its sql.Tx, and answers for that.
func (s *service) tellsTheTruth(what string, a answer, payments int, committed bool) {
	s.Helper()
	switch {
	case a.code == string(idem.CodeOutcomeUnknown) && payments < 2:
	case a.status == 201 && payments == 1:
	case a.status != 201 && payments == 0:
	case a.code == "" && a.status != 201 && committed:
	default:
		s.Errorf("%s: the client was told %v, and the ledger has %d payments", what, a, payments)
	}
}

// A handler does what it must not do, before and after it pays, and answers in every way. What its client is told is true, or is that
// nobody knows.
func TestJoinedWithoutKeyMisuseIsToldTruly(t *testing.T) {
	t.Parallel()
	wrong := map[string]misuse{"nothing": raw()}
	for _, list := range [][][]string{ending, going, {
		{"ROLLBACK AND CHAIN"}, {"SELECT pg_terminate_backend(pg_backend_pid())"}, {"SET TRANSACTION READ ONLY"}, {"TRUNCATE TABLE taken"},
		{"SET autocommit = 1"}, {"SET SESSION TRANSACTION READ WRITE", "COMMIT"}, {"START TRANSACTION READ WRITE"}, {"ROLLBACK; BEGIN"}, {"COMMIT; BEGIN"},
	}} {
		for _, statements := range list {
			wrong[strings.Join(statements, "; ")] = raw(statements...)
		}
	}
	const commits = "sql.Tx.Commit"
	wrong[commits] = func(_ *gin.Context, tx *sql.Tx) error { return tx.Commit() }
	wrong["sql.Tx.Rollback"] = func(_ *gin.Context, tx *sql.Tx) error { return tx.Rollback() }
	wrong["rows left open"] = func(_ *gin.Context, tx *sql.Tx) error {
		_, err := tx.Query("SELECT op FROM payments UNION ALL SELECT 'x' UNION ALL SELECT 'y'") //nolint:rowserrcheck,sqlclosecheck // that is the misuse
		return err
	}
	wrong["a cancelled statement"] = func(_ *gin.Context, tx *sql.Tx) error {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		defer cancel()
		_, _ = tx.ExecContext(ctx, "UPDATE payments SET amount = amount")
		return nil
	}
	onEachJoined(t, func(t *testing.T, b backend) {
		p := optional
		for _, strict := range []bool{false, true} {
			if strict {
				p = strictly(t, p)
			}
			s := startService(t, b, p)
			mustExec(s, s.pools.write, "CREATE TABLE taken (x INT PRIMARY KEY)")
			mustExec(s, s.pools.write, "INSERT INTO taken VALUES (1)")
			n := 0
			for name, step := range wrong {
				statuses := []int{201, 402, 500}
				if !strings.HasPrefix(name, "sql.Tx") {
					statuses = statuses[n%3 : n%3+1] // the names come in any order
				}
				for i := range 2 * len(statuses) {
					first, status, order := i%2 == 1, statuses[i/2], fmt.Sprint("order-", n)
					n++
					payErr := errors.New("the handler has not run")
					s.with(func(c *gin.Context) {
						tx, err := sqlstore.Tx(c)
						must(s, err)
						if first {
							_ = step(c, tx)
						}
						payErr = insertNamed(c, tx)
						if !first {
							_ = step(c, tx)
						}
						if payErr != nil { // a handler that looks at its errors
							c.String(500, "sorry")
							return
						}
						c.String(status, "paid")
					})
					a := s.payWithoutKey(order)
					what := fmt.Sprintf("%q, first %t, strict %t, %d, %v", name, first, strict, status, payErr)
					s.tellsTheTruth(what, a, s.named(order), name == commits)
				}
			}
			if s.backend.dialect == dialect.MySQL {
				s.wantCleanPool()
			}
			s.wantNothingOpen("after the misuse")
		}
	})
}

// The server ends the transaction because of a deadlock or a time-out, and the handler pays on. No half of a payment is told
// as a whole one.
func TestJoinedWithoutKeyAfterALostTransaction(t *testing.T) {
	t.Parallel()
	onLosses(t, optional, func(s *service, l loss) {
		n := 0
		for _, statements := range [][]string{{}, {"COMMIT"}, {"ROLLBACK"}, {"COMMIT", "BEGIN"}, {"COMMIT AND CHAIN"}, {"SET autocommit = 1"}} {
			for _, status := range []int{201, 402, 500} {
				order := fmt.Sprint("order-", n)
				n++
				s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
					if err := insertNamed(c, tx); err != nil { // one half
						return err
					}
					_ = l.suffer(s, tx)
					_ = insertNamed(c, tx) // the other one
					for _, statement := range statements {
						_, _ = tx.Exec(statement)
					}
					c.String(status, "paid")
					return nil
				}))
				a := s.payWithoutKey(order)
				halves := s.named(order)
				if a.status == 201 && halves != 2 || a.code != string(idem.CodeOutcomeUnknown) && a.status != 201 && halves > 0 {
					s.Errorf("%q and %d: the client was told %v, and %d halves were paid", statements, status, a, halves)
				}
			}
		}
		s.wantCleanPool()
	})
}

// COMMIT or its answer is lost. Without a record nothing can be looked up, so the client is told that the outcome is not known.
func TestJoinedWithoutKeyCommitWithoutAnAnswerIsUnknown(t *testing.T) {
	t.Parallel()
	onServers(t, optional, func(s *service, proxy *testserver.Proxy) {
		s.with(s.payingNamed(http.StatusCreated))
		s.want(s.payWithoutKey("first"), paid)
		unknown := refused(409, idem.CodeOutcomeUnknown)
		proxy.DropNextRequest(commitRequest(s))
		a := s.payWithoutKey("request")
		s.want(a, unknown)
		if !strings.Contains(a.body, `"may_have_happened":true`) || strings.Contains(a.body, "operation_id") {
			s.Errorf("the refusal is %s, want that it may have happened, and no operation", a.body)
		}
		proxy.DropNextReply(commitRequest(s))
		s.want(s.payWithoutKey("reply"), unknown)
		if s.named("request") != 0 || s.named("reply") != 1 {
			s.Errorf("%d payments whose COMMIT was lost, and %d whose answer was, want none and one", s.named("request"), s.named("reply"))
		}
		s.wantTold(telemetry.EventMisused, nil)
		s.wantNothingOpen("after the lost answers")
	})
}

// The database ends the session of a transaction.
func TestJoinedWithoutKeySessionsThatAreKilled(t *testing.T) {
	t.Parallel()
	onServers(t, optional, func(s *service, _ *testserver.Proxy) {
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			number, kill := "SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%d)"
			if s.backend.dialect == dialect.MySQL {
				number, kill = "SELECT CONNECTION_ID()", "KILL %d"
			}
			err := insertNamed(c, tx)
			var session int
			if err == nil {
				err = tx.QueryRow(number).Scan(&session)
			}
			if err == nil {
				_, err = s.pools.read.Exec(fmt.Sprintf(kill, session))
			}
			c.String(201, "paid")
			return err
		}))
		if a := s.payWithoutKey("killed"); a.code != string(idem.CodeOutcomeUnknown) && a.code != string(idem.CodeUnavailable) {
			s.Errorf("a payment whose session was killed before COMMIT = %v, want a refusal", a)
		}
		s.wantPayments(0)
		s.with(s.payingNamed(http.StatusCreated))
		s.eventually("a payment is made with another connection", func() bool { return s.payWithoutKey("after") == paid })
		s.wantPayments(1)
		s.wantNothingOpen("after the kill")
	})
}

// TestJoinedWithoutKeyIsToldTrulyWhileConnectionsAreCut has clients without keys pay at three instances with different isolation levels, while their connections
// are cut and the sessions of their transactions killed. Handlers panic and go on after errors.
func TestJoinedWithoutKeyIsToldTrulyWhileConnectionsAreCut(t *testing.T) {
	t.Parallel()
	enough, _ := kills(t, envKills, 10)
	parts := optional
	parts.engine = []idem.Option{idem.WithSettleTimeout(time.Second)}
	onServers(t, parts, func(s *service, proxy *testserver.Proxy) {
		proxies := []*testserver.Proxy{proxy, nil, nil}
		services := instancesOf(s, func(n int) serviceParts {
			parts := parts
			parts.rewrite = throughProxy(s.T, &proxies[n])
			return parts
		})
		for _, instance := range services {
			instance.with(instance.inTx(func(c *gin.Context, tx *sql.Tx) error {
				if err := insertNamed(c, tx); err != nil {
					return err
				}
				switch rand.IntN(8) {
				case 0:
					panic("boom")
				case 1:
					c.String(402, "poor")
				default:
					c.String(201, "paid")
				}
				return nil
			}))
		}
		ctx, stop := context.WithCancel(context.Background())
		var cutter, clients sync.WaitGroup
		var cuts, next, answered atomic.Int64
		cutter.Go(func() {
			defer stop()
			for int(cuts.Load()) < enough && !s.Failed() {
				more := answered.Load() + rand.Int64N(10)
				s.eventually("the clients are answered", func() bool { return answered.Load() >= more || s.Failed() })
				p := proxies[rand.IntN(len(proxies))]
				var fired <-chan struct{}
				switch rand.IntN(4) {
				case 0:
					p.Cut()
				case 1:
					s.killTransaction(ctx)
				case 2:
					fired = p.DropNextReply(commitRequest(s))
				default:
					fired = p.DropNextRequest(commitRequest(s))
				}
				if fired != nil {
					select {
					case <-fired:
					case <-time.After(time.Second): // the connection has ended before
					}
				}
				cuts.Add(1)
			}
		})
		var mu sync.Mutex
		told := map[string]answer{}
		for range 6 {
			clients.Go(func() {
				for ctx.Err() == nil {
					order := fmt.Sprint("order-", next.Add(1))
					a := services[rand.IntN(len(services))].payWithoutKey(order)
					answered.Add(1)
					mu.Lock()
					told[order] = a
					mu.Unlock()
				}
			})
		}
		cutter.Wait()
		clients.Wait()
		for _, instance := range services {
			instance.wantNothingOpen("at the end")
		}
		success := 0
		for order, a := range told {
			s.tellsTheTruth(order, a, s.named(order), false)
			if a.status == 201 {
				success++
			}
		}
		if success == 0 {
			s.Error("no payment succeeded")
		}
	})
}

// A payment takes as many round trips as its own transaction where one with a key does.
func TestJoinedWithoutKeyTrips(t *testing.T) {
	t.Parallel()
	for _, b := range []backend{pipelined, compounding} {
		b.run(t, func(t *testing.T, b backend) {
			var proxy *testserver.Proxy
			p := optional
			p.store = []sqlstore.Option{sqlstore.WithExpiry(0)}
			p.rewrite = throughProxy(t, &proxy)
			s := startService(t, b, p)
			s.with(s.payingNamed(http.StatusCreated))
			s.want(s.payWithoutKey("first"), paid)
			counter := proxy.Count("")
			s.want(s.payWithoutKey("second"), paid)
			if n := counter.Seen().Total(); n != 3 {
				t.Errorf("a payment without a key takes %d requests, want 3: begin, pay, and commit", n)
			}
		})
	}
}

// CheckOwner asks the transaction.
func TestJoinedWithoutKeyCheckOwner(t *testing.T) {
	t.Parallel()
	onEachService(t, optional, func(s *service) {
		s.with(s.inTx(func(c *gin.Context, tx *sql.Tx) error {
			if _, err := idem.CheckOwner(c); err != nil {
				s.Errorf("CheckOwner() = %v", err)
			}
			if s.backend.dialect == dialect.PostgreSQL { // the others do not tell
				_, _ = tx.Exec("ROLLBACK")
				if _, err := idem.CheckOwner(c); !errors.Is(err, driver.ErrEscaped) {
					s.Errorf("CheckOwner() after ROLLBACK = %v, want %v", err, driver.ErrEscaped)
				}
			}
			return errors.New("give up")
		}))
		if a := s.payWithoutKey("order"); a.status < 400 {
			s.Errorf("answer = %v, want a failure", a)
		}
		s.wantPayments(0)
	})
}
