package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/example-payments/telemetry"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench holds the parts that instances of the service share.
type bench struct {
	locker *memorylock.Locker
	store  driver.Store
	ledger *hooked
	sql    *ledger.Ledger
}

func newBench(t testing.TB) *bench {
	t.Helper()
	l, err := ledger.Open(t.Context(), "", ledger.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Audit(context.Background()); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, m := range []string{"merchant_demo", "merchant_test"} {
		if err := l.AddMerchant(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	return &bench{locker: memorylock.New(), store: memorystore.New(), sql: l, ledger: &hooked{Ledger: l}}
}

// instance starts a server on a free port. change may alter its Config first.
func (b *bench) instance(t testing.TB, change func(*server.Config)) *client {
	t.Helper()
	keys, err := payments.ParseAPIKeys("demo=merchant_demo,test=merchant_test")
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	measured, err := telemetry.New(t.Context(), log)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := idem.New(b.locker, b.store, measured.Observer.Engine())
	if err != nil {
		t.Fatal(err)
	}
	cfg := server.Config{
		Engine: engine, Ledger: b.ledger, Keys: keys, Telemetry: measured, Log: log,
		Service:  &payments.Service{Ledger: b.ledger, Log: log},
		Resolver: server.LedgerResolver(b.ledger, false),
	}
	if change != nil {
		change(&cfg)
	}
	h, err := server.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewServer(h)
	t.Cleanup(func() {
		ts.Client().CloseIdleConnections()
		ts.Close()
		if err := engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &client{t: t, url: ts.URL, http: ts.Client()}
}

func setup(t *testing.T) (*bench, *client) {
	t.Helper()
	b := newBench(t)
	return b, b.instance(t, nil)
}

// hooked is a ledger with a place to break it. Set its hooks before it is used.
type hooked struct {
	payments.Ledger
	before func(context.Context) error // an error: nothing is paid
	after  func(context.Context) error // an error: paid, but not told so
}

func (h *hooked) Pay(ctx context.Context, merchant string, p payments.Payment, f driver.Fence) error {
	if h.before != nil {
		if err := h.before(ctx); err != nil {
			return err
		}
	}
	if err := h.Ledger.Pay(ctx, merchant, p, f); err != nil || h.after == nil {
		return err
	}
	return h.after(ctx)
}

// client talks to an instance as merchant_demo, unless told otherwise.
type client struct {
	t    testing.TB
	url  string
	http *http.Client
}

// answer is a response that has been read.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) code() string { return a.field("code") }

// field returns a member of a JSON object, as text.
func (a answer) field(name string) string {
	var m map[string]any
	_ = json.Unmarshal([]byte(a.body), &m)
	s, _ := m[name].(string)
	return s
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// do sends a request with pairs as headers.
func (c *client) do(method, path, body string, pairs ...string) answer {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	a, err := c.try(ctx, method, path, body, pairs...)
	if err != nil {
		c.t.Fatal(err)
	}
	return a
}

func (c *client) try(ctx context.Context, method, path, body string, pairs ...string) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, strings.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	req.Header.Set("Authorization", "Bearer demo")
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(pairs); i += 2 {
		req.Header.Set(pairs[i], pairs[i+1])
	}
	res, err := c.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer res.Body.Close()
	var b bytes.Buffer
	_, err = io.Copy(&b, res.Body)
	return answer{res.StatusCode, res.Header, b.String()}, err
}

const order = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"n"}`

func (c *client) pay(key, body string, pairs ...string) answer {
	c.t.Helper()
	return c.do("POST", "/v1/payments", body, append([]string{"Idempotency-Key", key}, pairs...)...)
}

func (c *client) state(key string) string {
	c.t.Helper()
	return c.do("GET", "/v1/idempotency", "", "Idempotency-Key", key).field("state")
}

// payments counts those of merchant_demo.
func (c *client) payments() int {
	c.t.Helper()
	var list struct{ Payments []json.RawMessage }
	a := c.do("GET", "/v1/payments", "")
	if err := json.Unmarshal([]byte(a.body), &list); err != nil {
		c.t.Fatalf("%s: %v", a.body, err)
	}
	return len(list.Payments)
}

// wantAnswer fails the test unless the answer has status and code ("" for none).
func (a answer) wantAnswer(t testing.TB, what string, status int, code string) {
	t.Helper()
	if a.status != status || a.code() != code {
		t.Errorf("%s: %d %s, want %d %q", what, a.status, a.body, status, code)
	}
	if code != "" && a.header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%s: Content-Type %q, want a problem", what, a.header.Get("Content-Type"))
	}
	if status == http.StatusServiceUnavailable && !a.replayed() && a.header.Get("Retry-After") == "" {
		t.Errorf("%s: 503 without Retry-After", what)
	}
}
