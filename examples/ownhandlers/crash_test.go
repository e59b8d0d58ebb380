package ownhandlers_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/crashtest"
	crashredis "github.com/idemkeeper/idemkeeper/crashtest/redis"
	"github.com/idemkeeper/idemkeeper/examples/ownhandlers"
	"github.com/idemkeeper/idemkeeper/examples/ownhandlers/broken"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// full reports whether to run all faults, as make crashtest does. A run of one case may have any.
func full() bool { return os.Getenv("IDEMKEEPER_CRASHTEST") != "" || os.Getenv("CRASHTEST_CASE") != "" }

// part is what a handler is made of, in a process of the service.
type part struct {
	env *crashtest.Env
	db  *sql.DB
}

// call posts to the other system of the test.
func (p part) call(system, path string) broken.Call {
	client := &http.Client{Transport: p.env.RoundTripper(system, &http.Transport{DisableKeepAlives: true})}
	return func(ctx context.Context, order string) error {
		body := strings.NewReader(fmt.Sprintf(`{"order":%q}`, order))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.env.Setting("system")+path, body)
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
			return errors.Join(err, fmt.Errorf("%s answered %s", system, res.Status))
		}
		return nil
	}
}

// system is a bank or a message bus. It counts what it was asked for.
type system struct {
	name        string
	honoursKeys bool // of its callers, as a bank should
	mu          sync.Mutex
	done        map[string]int
}

func (s *system) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var o struct{ Order string }
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done[o.Order]++; s.honoursKeys {
		s.done[o.Order] = 1
	}
}

func (s *system) count(_ context.Context, order string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done[order], nil
}

// subject is a service with one handler, on a PostgreSQL and perhaps another system.
func subject(handler func(part) (gin.HandlerFunc, error), other *system) crashtest.Subject {
	var ledger *sql.DB
	restart := map[string]func(context.Context) error{}
	s := crashtest.Subject{
		Restart: restart,
		Setup: func(tb testing.TB) map[string]string {
			settings := map[string]string{"redis": testserver.SharedRedis(tb)}
			var server string
			if full() {
				own := testserver.StartPostgres(tb)
				server, restart["PostgreSQL"] = own.URL(), func(context.Context) error { own.Restart(); return nil }
			} else {
				server = testserver.SharedPostgres(tb)
			}
			ledger, settings["database"] = ownhandlers.Database(tb, server)
			if other != nil {
				other.done = map[string]int{}
				server := httptest.NewServer(other)
				tb.Cleanup(server.Close)
				settings["system"] = server.URL
			}
			return settings
		},
		Serve: func(_ context.Context, env *crashtest.Env) error {
			db, err := env.OpenDB("pgx", env.Setting("database"))
			if err != nil {
				return err
			}
			handle, err := handler(part{env, db})
			if err != nil {
				return err
			}
			router := gin.New()
			router.POST("/pay", handle)
			l, err := env.Listen()
			if err != nil {
				return err
			}
			return http.Serve(l, router)
		},
		Request: func(ctx context.Context, c crashtest.Call) (crashtest.Answer, error) {
			amount := 1250
			if c.Other {
				amount = 99
			}
			body := strings.NewReader(fmt.Sprintf(`{"order":%q,"amount":%d}`, c.Key, amount))
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL("/pay"), body)
			if err != nil {
				return crashtest.Answer{}, err
			}
			req.Header.Set("Idempotency-Key", c.Key)
			return crashtest.Send(req)
		},
		Effects: func(ctx context.Context, key string) (n int, err error) {
			err = ledger.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM payments WHERE key = $1) + (SELECT count(*) FROM orders WHERE key = $1)", key).Scan(&n)
			return n, err
		},
		Short: !full(),
	}
	if other != nil {
		s.OtherEffects = map[string]func(context.Context, string) (int, error){other.name: other.count}
	}
	return s
}

// payments is the handler that only writes to the database.
func payments(p part) (gin.HandlerFunc, error) {
	pay := &ownhandlers.Payments{DB: p.db, Pay: insert}
	return pay.Handle, nil
}

// bankPayments is the handler that calls a bank.
func bankPayments(p part) (gin.HandlerFunc, error) {
	capture := p.call("bank", "/captures")
	pay := &ownhandlers.BankPayments{
		DB: p.db, TakeOver: p.env.Lease,
		Charge: func(ctx context.Context, key string, _ []byte) (ownhandlers.Answer, error) {
			return ownhandlers.Answer{Status: http.StatusCreated, Body: []byte(`{"charged":true}`)}, capture(ctx, key)
		},
		Record: func(ctx context.Context, tx *sql.Tx, order []byte, _ ownhandlers.Answer) error {
			_, err := insert(ctx, tx, order)
			return err
		},
	}
	return pay.Handle, nil
}

func orderOf(body []byte) string {
	var o struct{ Order string }
	_ = json.Unmarshal(body, &o) // the test has written it
	return o.Order
}

func insert(ctx context.Context, tx *sql.Tx, body []byte) (ownhandlers.Answer, error) {
	var o struct {
		Order  string
		Amount int64
	}
	if err := json.Unmarshal(body, &o); err != nil {
		return ownhandlers.Answer{}, err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO payments (key, amount) VALUES ($1, $2)", o.Order, o.Amount)
	return ownhandlers.Answer{Status: http.StatusCreated, Body: fmt.Appendf(nil, `{"paid":%d}`, o.Amount)}, err
}

func TestPaymentsSurvive(t *testing.T) {
	crashtest.Run(t, subject(payments, nil))
}

func TestBankPaymentsSurvive(t *testing.T) {
	crashtest.Run(t, subject(bankPayments, &system{name: "bank", honoursKeys: true}))
}

// Each broken handler is found at the point that its comment names. Others may be in the table too.
func TestBrokenHandlersAreFound(t *testing.T) {
	withCall := func(system, path string, of func(*sql.DB, broken.Call) *ownhandlers.Payments) func(part) (gin.HandlerFunc, error) {
		return func(p part) (gin.HandlerFunc, error) { return of(p.db, p.call(system, path)).Handle, nil }
	}
	for _, c := range []struct {
		name, file string
		handler    func(part) (gin.HandlerFunc, error)
		other      *system
		point      string
		fault      crashtest.Fault
	}{
		{"SetNX", "broken/setnx.go", func(p part) (gin.HandlerFunc, error) {
			opts, err := redis.ParseURL(p.env.Setting("redis"))
			if err != nil {
				return nil, err
			}
			return (&broken.SetNX{Redis: crashredis.Wrap(p.env, redis.NewClient(opts)), DB: p.db, TTL: p.env.Lease}).Handle, nil
		}, nil, "INSERT INTO payments", crashtest.KilledAfter},
		{"UniqueKey", "broken/uniquekey.go", func(p part) (gin.HandlerFunc, error) {
			return (&broken.UniqueKey{DB: p.db}).Handle, nil
		}, nil, "INSERT INTO orders", crashtest.OtherBody},
		{"EarlyOutbox", "broken/withbank.go", withCall("bus", "/messages", broken.EarlyOutbox), &system{name: "bus"}, "POST bus/messages", crashtest.KilledAfter},
		{"BankBeforeCommit", "broken/withbank.go", withCall("bank", "/captures", broken.BankBeforeCommit), &system{name: "bank"}, "POST bank/captures", crashtest.KilledAfter},
		{"SwallowedError", "broken/withbank.go", withCall("bank", "/captures", broken.SwallowedError), &system{name: "bank"}, "POST bank/captures", crashtest.ConnectionCut},
		{"BankPayments and a bank that ignores keys", "bank.go", bankPayments, &system{name: "bank"}, "POST bank/captures", crashtest.KilledAfter},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := subject(c.handler, c.other)
			s.Faults = []crashtest.Fault{c.fault}
			if full() {
				s.Faults = nil
			}
			report := crashtest.Find(t, s)
			t.Log(report)
			found := false
			for _, f := range report.Failures() {
				found = found || f.Point.Name == c.point && f.Fault == c.fault
			}
			if !found {
				t.Errorf("not found at %q, %s", c.point, c.fault)
			}
			source, err := os.ReadFile(c.file)
			if err != nil {
				t.Fatal(err)
			}
			comment := strings.Join(strings.Fields(strings.ReplaceAll(string(source), "//", " ")), " ")
			if named := fmt.Sprintf("%q, %s", c.point, c.fault); !strings.Contains(comment, named) {
				t.Errorf("no comment in %s names %s", c.file, named)
			}
		})
	}
}
