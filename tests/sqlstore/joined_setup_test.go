package sqlstore_test

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// patience bounds what a test waits for. Reaching it is a failure.
const patience = 30 * time.Second

// service is a Gin service with one protected route, POST /pay, on a database of its own.
type service struct {
	*testing.T
	backend backend
	pools   pools
	spy     *spy    // of its pools, if the test has one
	beside  *sql.DB // the pool without the spy
	store   *store
	joined  *sqlstore.Joined
	engine  *idem.Engine
	router  *gin.Engine
	serve   http.Handler // in place of router, if set

	mu     sync.Mutex
	runs   int
	events []telemetry.Event
	handle gin.HandlerFunc
}

// serviceParts is what differs from the defaults.
type serviceParts struct {
	pool    int // connections; 8 by default
	store   []sqlstore.Option
	joined  []sqlstore.JoinedOption
	engine  []idem.Option
	policy  func(*idem.Policy)
	config  exchange.Config
	pools   *pools // of another service, to make another instance of it
	rewrite func(p *pools)
	sees    func(*statement) // has a spy, which begins with this
}

func startService(t *testing.T, b backend, p serviceParts) *service {
	t.Helper()
	s := &service{T: t, backend: b}
	if p.pools != nil {
		s.pools = *p.pools
	} else {
		s.pools = b.migrated(t)
		mustExec(t, s.pools.write, "CREATE TABLE payments (op VARCHAR(64) NOT NULL, amount BIGINT NOT NULL)")
	}
	if p.rewrite != nil {
		p.rewrite(&s.pools)
	}
	opts := p.store
	if b.dialect == dialect.SQLite {
		opts = append(opts, sqlstore.WithSoleProcess())
	} else {
		s.pools.write.SetMaxOpenConns(cmp.Or(p.pool, 8))
	}
	s.beside = s.pools.write
	if p.sees != nil {
		s.pools, s.spy = s.pools.spied(t)
		s.spy.sees(p.sees)
	}
	s.store = b.store(t, s.pools, opts...)
	var err error
	if s.joined, err = s.store.Joined(p.joined...); err != nil {
		t.Fatalf("Joined() = %v, want <nil>", err)
	}
	engineOpts := append([]idem.Option{idem.WithObserver(s.observe), idem.WithLockTimeout(patience), idem.WithStoreTimeout(patience)}, p.engine...)
	if s.engine, err = idem.NewJoined(s.joined, engineOpts...); err != nil {
		t.Fatalf("NewJoined() = %v, want <nil>", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.engine.Close(ctx); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	policy := idem.Policy{Scope: func(context.Context) (string, error) { return "merchant", nil }}
	if p.policy != nil {
		p.policy(&policy)
	}
	s.handle = s.paying(http.StatusCreated)
	s.router = gin.New()
	s.router.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusInternalServerError) }))
	s.router.POST("/pay", idemgin.MustNew(s.engine, policy, p.config), func(c *gin.Context) {
		s.mu.Lock()
		s.runs++
		h := s.handle
		s.mu.Unlock()
		h(c)
	})
	s.router.GET("/status", idemgin.MustStatusHandler(s.engine, policy))
	s.router.POST("/tokens", idemgin.MustTokenHandler(s.engine, policy, 0))
	return s
}

func (s *service) observe(_ context.Context, ev telemetry.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, ev)
}

// saw returns the errors of the events of a type.
func (s *service) saw(t telemetry.EventType) (errs []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ev := range s.events {
		if ev.Type == t {
			errs = append(errs, ev.Err)
		}
	}
	return errs
}

// with sets the handler.
func (s *service) with(h gin.HandlerFunc) *service {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handle = h
	return s
}

// inTx is a handler that works in its transaction. An error is answered with 500.
func (s *service) inTx(work func(c *gin.Context, tx *sql.Tx) error) gin.HandlerFunc {
	return func(c *gin.Context) {
		tx, err := sqlstore.Tx(c)
		if err == nil {
			err = work(c, tx)
		}
		if err != nil && !c.Writer.Written() {
			c.String(http.StatusInternalServerError, "sorry")
		}
	}
}

// paying is a handler that writes a payment and answers with a status.
func (s *service) paying(status int) gin.HandlerFunc { return s.sending(status, "pay") }

// sending is a handler that sends statements in its transaction, the payment for "pay", and answers with a status.
func (s *service) sending(status int, statements ...string) gin.HandlerFunc {
	return s.inTx(func(c *gin.Context, tx *sql.Tx) error {
		for _, statement := range statements {
			var err error
			if statement == "pay" {
				err = s.insert(c, tx)
			} else {
				_, err = tx.Exec(statement)
			}
			if err != nil {
				return err
			}
		}
		c.String(status, "paid")
		return nil
	})
}

// execer is a pool, a connection or a transaction.
type execer interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// insert writes a payment of 100.
func (s *service) insert(ctx context.Context, tx execer) error {
	x, ok := idem.FromContext(ctx)
	if !ok {
		return errors.New("not in an execution")
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO payments (op, amount) VALUES ('%s', 100)", x.OperationID))
	return err
}

// answer is what a client gets.
type answer struct {
	status   int
	code     string // of a refusal
	body     string
	replayed bool
}

func (a answer) String() string {
	if a.code != "" {
		return fmt.Sprintf("%d %s", a.status, a.code)
	}
	return fmt.Sprintf("%d %.100q of %d bytes, replayed %t", a.status, a.body, len(a.body), a.replayed)
}

// pay sends a payment under a key.
func (s *service) pay(key string) answer { return s.payAmount(key, 100) }

func (s *service) payAmount(key string, amount int) answer { return s.payTo("/pay", key, amount) }

func (s *service) payTo(path, key string, amount int) answer {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(fmt.Sprintf(`{"amount":%d}`, amount)))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	return s.send(r)
}

func (s *service) send(r *http.Request) answer {
	w := httptest.NewRecorder()
	if s.serve != nil {
		s.serve.ServeHTTP(w, r)
	} else {
		s.router.ServeHTTP(w, r)
	}
	a := answer{status: w.Code, body: w.Body.String(), replayed: w.Header().Get("Idempotent-Replayed") == "true"}
	if _, after, ok := strings.Cut(a.body, `"code":"`); ok {
		a.code, _, _ = strings.Cut(after, `"`)
	}
	return a
}

func (s *service) want(got, want answer) {
	s.Helper()
	compared := got
	if want.code != "" {
		compared.body = want.body
	}
	if compared != want {
		s.Errorf("answer = %v, want %v", got, want)
	}
}

var (
	paid       = answer{status: 201, body: "paid"}
	paidBefore = answer{status: 201, body: "paid", replayed: true}
)

func refused(status int, code idem.Code) answer { return answer{status: status, code: string(code)} }

// wantPayments counts the committed payments.
func (s *service) wantPayments(want int) {
	s.Helper()
	if n := get[int](s, s.pools.read, "SELECT count(*) FROM payments"); n != want {
		s.Errorf("the ledger has %d payments, want %d", n, want)
	}
}

// paidTo counts the payments of a key.
func (s *service) paidTo(key string) int {
	s.Helper()
	return get[int](s, s.pools.read, fmt.Sprintf("SELECT count(*) FROM payments WHERE op = '%s'", idOf(key).OperationID()))
}

// wantState asks as the owner of a key does.
func (s *service) wantState(key string, want driver.State) {
	s.Helper()
	r := httptest.NewRequest(http.MethodGet, "/status", nil)
	r.Header.Set("Idempotency-Key", key)
	if a := s.send(r); !strings.Contains(a.body, fmt.Sprintf(`"state":%q`, want)) {
		s.Errorf("status of %q = %v, want %v", key, a, want)
	}
}

// token returns a new one-time token.
func (s *service) token() string {
	s.Helper()
	token, err := s.engine.IssueToken(context.Background(), "merchant", time.Hour)
	must(s, err)
	return string(token.Value)
}

// started sends a payment whose handler waits after its writes, and returns when it does.
func (s *service) started(key string) (finish func() answer) {
	s.Helper()
	running, release, done := make(chan struct{}), make(chan struct{}), make(chan answer, 1)
	inner := s.handle
	s.with(func(c *gin.Context) {
		inner(c)
		close(running)
		<-release
	})
	go func() { done <- s.pay(key) }()
	select {
	case <-running:
	case a := <-done:
		s.Fatalf("answered %v before its handler waited", a)
	case <-time.After(patience):
		s.Fatal("the handler never ran")
	}
	s.with(inner)
	return sync.OnceValue(func() answer {
		close(release)
		return <-done
	})
}

// onEachJoined is onEach, and also through a pooler, with pipelines and with compound statements.
func onEachJoined(t *testing.T, f func(t *testing.T, b backend)) {
	t.Helper()
	onEach(t, f)
	throughPgBouncer.run(t, f)
	pipelined.run(t, f)
	compounding.run(t, f)
}

// onEachService runs a test on each database.
func onEachService(t *testing.T, p serviceParts, f func(s *service)) {
	t.Helper()
	onEachJoined(t, func(t *testing.T, b backend) { f(startService(t, b, p)) })
}

// wantNothingOpen wants no transaction, no slot and no advisory lock to be left.
func (s *service) wantNothingOpen(when string) {
	s.Helper()
	s.eventually(when+": every connection is given back", func() bool { return s.pools.write.Stats().InUse == 0 })
	s.wantSlots(when)
	if s.backend.dialect == dialect.PostgreSQL { // the server notices the end of a connection soon
		s.eventually(when+": every advisory lock is free", func() bool {
			return holds(s.pools.read, "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
		})
	}
}

// wantSlots wants as many transactions to be open at once as there may be, if the database can be reached. A slot that was not given
// back would be missing.
func (s *service) wantSlots(when string) {
	s.Helper()
	n := s.pools.write.Stats().MaxOpenConnections - 1
	if s.backend.dialect == dialect.SQLite {
		n = 1
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for range n {
		begin, err := s.joined.BeginJoined(ctx, idOf(driver.NewNonce().String()), joinedRequest(driver.ClientKey))
		if says(err, "joined transactions are in use") {
			s.Errorf("%s: a slot was not given back: %v", when, err)
		}
		if err != nil {
			return
		}
		defer begin.Tx.Rollback(ctx)
	}
}

// onMariaDB runs a test on MariaDB, and on MySQL if a server is named.
func onMariaDB(t *testing.T, p serviceParts, f func(s *service)) {
	t.Helper()
	onMySQLs(t, func(t *testing.T, b backend) { f(startService(t, b, p)) })
}

// onMySQLs runs a test on MariaDB, with compound statements too, and on MySQL if a server is named.
func onMySQLs(t *testing.T, f func(t *testing.T, b backend)) {
	t.Helper()
	for _, b := range append(backends(), compounding) {
		if b.dialect == dialect.MySQL {
			b.run(t, f)
		}
	}
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

// wantMisuse wants the developer to have been told once, and not at all for nil.
func (s *service) wantMisuse(want error) {
	s.Helper()
	s.wantTold(telemetry.EventMisused, want)
}

// wantTold wants one event of a type because of an error, and none for nil.
func (s *service) wantTold(event telemetry.EventType, want error) {
	s.Helper()
	if told := s.saw(event); want == nil && len(told) > 0 || want != nil && (len(told) != 1 || !errors.Is(told[0], want) && !says(told[0], want.Error())) {
		s.Errorf("the developer was told of %v because of %v, want %v", event, told, want)
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
