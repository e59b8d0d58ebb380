package paytest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Patience bounds what a test waits for. Reaching it is a failure.
const Patience = 3 * time.Minute

// Suite is a test of an example.
type Suite struct {
	*testing.T

	Pool *pgxpool.Pool // of the test, on the database of the example

	example string
	open    Open
	setting Setting
	service *service
}

var databases atomic.Int64

// Setup makes a database with the tables payments and idem_…, and those of more.
func Setup(t *testing.T, example string, open Open, more func(ctx context.Context, pool *pgxpool.Pool) error) *Suite {
	t.Helper()
	ctx := t.Context()
	shared := testserver.SharedPostgres(t)
	admin := connect(t, shared)
	name := fmt.Sprintf("paytest_%d_%d", os.Getpid(), databases.Add(1))
	mustExec(t, admin, "CREATE DATABASE "+name)
	t.Cleanup(func() { mustExec(t, admin, "DROP DATABASE "+name+" WITH (FORCE)") })
	u, err := url.Parse(shared)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	s := &Suite{T: t, example: example, open: open, Pool: connect(t, u.String()), setting: Setting{Database: u.String(), Reach: func(string) {}}}
	mustExec(t, s.Pool, "CREATE TABLE payments (id text PRIMARY KEY, payer text NOT NULL, amount bigint NOT NULL)")
	db := stdlib.OpenDBFromPool(s.Pool)
	defer db.Close()
	if err := sqlstore.Migrate(ctx, db, dialect.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	if more != nil {
		if err := more(ctx, s.Pool); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func connect(t *testing.T, dsn string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	cfg.ConnConfig.OnNotice = nil
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func mustExec(t *testing.T, pool *pgxpool.Pool, statement string) {
	t.Helper()
	if _, err := pool.Exec(context.Background(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Serve runs the service of the example in this process.
func (s *Suite) Serve() *Suite {
	s.Helper()
	setting := s.setting
	v, err := newService(context.Background(), &setting, s.open)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(setting.end)
	s.service = v
	return s
}

// After sets what the handlers of this process do after they have written the payment.
func (s *Suite) After(f func(c *gin.Context)) *Suite { s.service.after = f; return s }

// Receiver sets the URL of the other system of the example.
func (s *Suite) Receiver(url string) { s.setting.Receiver = url }

// Start starts an instance in a process of its own, which stops at a step. "" is none.
func (s *Suite) Start(stopAt string) *Process {
	s.Helper()
	return s.StartAs(s.example, stopAt)
}

// StartAs is Start of another example on the same database.
func (s *Suite) StartAs(example, stopAt string) *Process {
	s.Helper()
	return start(s.T, example, &s.setting, stopAt)
}

// Answer is what a client gets. The zero value is a connection that broke.
type Answer struct {
	Status   int
	Body     string
	Replayed bool
}

// Pay sends a payment of an amount to the service in this process.
func (s *Suite) Pay(key string, amount int64) Answer { return Send(s.T, s.service, key, amount) }

// Send sends a payment of an amount to a handler.
func Send(t *testing.T, h http.Handler, key string, amount int64) Answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, request(t, "/pay", key, amount))
	return answer(w.Result())
}

// Pay sends a payment of an amount to a process.
func (p *Process) Pay(key string, amount int64) Answer {
	client := http.Client{Timeout: Patience, Transport: &http.Transport{DisableKeepAlives: true}}
	r := request(p.t, p.URL, key, amount)
	r.RequestURI, r.GetBody = "", nil // no retry by net/http itself
	resp, err := client.Do(r)
	if err != nil {
		return Answer{}
	}
	return answer(resp)
}

func request(t *testing.T, url, key string, amount int64) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(fmt.Sprintf(`{"payer":"alice","amount":%d}`, amount)))
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	return r
}

func answer(resp *http.Response) Answer {
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return Answer{}
	}
	return Answer{Status: resp.StatusCode, Body: string(body), Replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
}

// Want compares the status of an answer, and whether it was replayed.
func (s *Suite) Want(a Answer, status int, replayed bool) {
	s.Helper()
	if a.Status != status || a.Replayed != replayed {
		s.Errorf("answer = %+v, want %d, replayed %t", a, status, replayed)
	}
}

// WantPayments compares the amounts of the committed payments.
func (s *Suite) WantPayments(want ...int64) {
	s.Helper()
	var got []int64
	err := s.Pool.QueryRow(context.Background(), "SELECT coalesce(array_agg(amount ORDER BY amount), '{}') FROM payments").Scan(&got)
	if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
		s.Errorf("the committed payments are %v, %v, want %v", got, err, want)
	}
}

// Eventually waits until a condition holds.
func (s *Suite) Eventually(what string, holds func() bool) {
	s.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.NewTimer(Patience)
	defer late.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-late.C:
			s.Fatalf("not within %v: %s", Patience, what)
		}
	}
}

// Run runs the suite.
func Run(t *testing.T, example string, open Open, more func(ctx context.Context, pool *pgxpool.Pool) error) {
	t.Helper()
	setup := func(t *testing.T) *Suite { return Setup(t, example, open, more) }
	t.Run("a payment commits with its record", func(t *testing.T) {
		s := setup(t).Serve()
		first, again := s.Pay("k1", 100), s.Pay("k1", 100)
		s.Want(first, 201, false)
		s.Want(again, 201, true)
		if first.Body != again.Body || !strings.Contains(first.Body, `"sum":100`) {
			t.Errorf("answers = %q and %q, want the same, with the sum", first.Body, again.Body)
		}
		s.Want(s.Pay("k1", 200), 422, false)
		s.WantPayments(100)
	})
	t.Run("a refusal is kept without the payment", func(t *testing.T) {
		s := setup(t).Serve()
		s.Want(s.Pay("k1", Limit+1), 402, false)
		s.Want(s.Pay("k1", Limit+1), 402, true)
		s.WantPayments()
	})
	for name, fail := range map[string]gin.HandlerFunc{
		"a failure": func(c *gin.Context) { c.AbortWithStatus(http.StatusInternalServerError) },
		"a panic":   func(*gin.Context) { panic("boom") },
	} {
		t.Run(name+" leaves nothing", func(t *testing.T) {
			s := setup(t).Serve().After(fail)
			s.Want(s.Pay("k1", 100), 500, false)
			s.WantPayments()
			s.After(func(*gin.Context) {})
			s.Want(s.Pay("k1", 100), 201, false)
			s.WantPayments(100)
		})
	}
	t.Run("a killed process leaves nothing", func(t *testing.T) {
		s := setup(t)
		p := s.Start(Written)
		broken := make(chan Answer)
		go func() { broken <- p.Pay("k1", 100) }()
		p.WaitAt(Written)
		p.Kill()
		s.Want(<-broken, 0, false)
		s.WantPayments()
		p = s.Start("")
		s.Want(p.Pay("k1", 100), 201, false)
		s.Want(p.Pay("k1", 100), 201, true)
		s.WantPayments(100)
	})
	t.Run("a process killed after the commit has paid", func(t *testing.T) {
		s := setup(t)
		p := s.Start(Committed)
		broken := make(chan Answer)
		go func() { broken <- p.Pay("k1", 100) }()
		p.WaitAt(Committed)
		p.Kill()
		s.Want(<-broken, 0, false)
		s.WantPayments(100)
		s.Want(s.Start("").Pay("k1", 100), 201, true)
		s.WantPayments(100)
	})
}
