package server_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

func TestWithoutAPIKeyNothingIsServed(t *testing.T) {
	_, c := setup(t)
	routes := []string{"POST /v1/payments", "POST /v1/trades", "POST /v1/tokens", "GET /v1/payments", "GET /v1/payments/x",
		"GET /v1/accounts", "GET /v1/accounts/alice", "GET /v1/idempotency"}
	for _, route := range routes {
		method, path, _ := strings.Cut(route, " ")
		for _, auth := range []string{"", "Bearer", "Bearer ", "Bearer nobody", "Basic demo", "demo", "Bearer demo test"} {
			a := c.do(method, path, order, "Authorization", auth, "Idempotency-Key", "k")
			a.wantAnswer(t, route+" with "+auth, 401, "unauthorized")
			if !strings.HasPrefix(a.header.Get("WWW-Authenticate"), "Bearer") {
				t.Errorf("%s: no WWW-Authenticate", route)
			}
		}
	}
	if n := c.payments(); n != 0 {
		t.Errorf("%d payments, want none", n)
	}
	if a := c.pay("k", order, "Authorization", "bearer demo"); a.status != 201 {
		t.Errorf("scheme in small letters: %d %s, want 201", a.status, a.body)
	}
}

func TestUnknownRoutesAreProblems(t *testing.T) {
	_, c := setup(t)
	c.do("GET", "/nowhere", "").wantAnswer(t, "GET /nowhere", 404, "not-found")
	c.do("GET", "/v1/payments/", "").wantAnswer(t, "trailing slash", 404, "not-found")
	c.do("POST", "/v1/payments/", order).wantAnswer(t, "POST with a trailing slash", 404, "not-found")
	a := c.do("DELETE", "/v1/payments", "")
	a.wantAnswer(t, "DELETE /v1/payments", 405, "method-not-allowed")
	if allow := a.header.Get("Allow"); !strings.Contains(allow, "POST") || !strings.Contains(allow, "GET") {
		t.Errorf("Allow %q, want GET and POST", allow)
	}
}

func TestReads(t *testing.T) {
	_, c := setup(t)
	c.do("GET", "/v1/payments/pay_x", "").wantAnswer(t, "no such payment", 404, "payment-unknown")
	c.do("GET", "/v1/accounts/zoe", "").wantAnswer(t, "no such account", 404, "account-unknown")
	c.do("GET", "/v1/payments?limit=0", "").wantAnswer(t, "no limit", 400, "query-invalid")
	if got := c.do("GET", "/v1/payments", "").body; got != `{"payments":[],"has_more":false}` {
		t.Errorf("empty list: %s", got)
	}
	for i, note := range []string{"a&b", "c", "a&b"} {
		c.pay(string(rune('x'+i)), strings.Replace(order, `"n"`, `"`+note+`"`, 1)).wantAnswer(t, note, 201, "")
	}
	list := c.do("GET", "/v1/payments?note=a%26b", "").body
	if strings.Count(list, `"id":`) != 2 || strings.Contains(list, `"c"`) {
		t.Errorf("list by note: %s, want the two", list)
	}
	if got := c.do("GET", "/v1/payments?limit=1", "").body; strings.Count(got, `"id":`) != 1 || !strings.Contains(got, `"has_more":true`) {
		t.Errorf("limited list: %s", got)
	}
	first := c.do("GET", "/v1/idempotency", "", "Idempotency-Key", "x").field("operation_id")
	if got := c.do("GET", "/v1/payments?operation_id="+first, "").body; strings.Count(got, `"id":`) != 1 || !strings.Contains(got, `"a\u0026b"`) {
		t.Errorf("list by operation ID: %s, want the first payment", got)
	}
	if got := c.do("GET", "/v1/payments?note=c&operation_id="+first, "").body; strings.Count(got, `"id":`) != 0 {
		t.Errorf("list by operation ID and another note: %s, want none", got)
	}
	c.do("GET", "/v1/payments?operation_id=nonsense", "").wantAnswer(t, "an operation ID with a typing error", 400, "query-invalid")
	want := `{"accounts":[{"id":"alice","balance":996250,"currency":"USD"},{"id":"bob","balance":1003750,"currency":"USD"},{"id":"carol","balance":1000000,"currency":"USD"}]}`
	if got := c.do("GET", "/v1/accounts", "").body; got != want {
		t.Errorf("accounts: %s, want %s", got, want)
	}
}

func TestOperatorsRoutes(t *testing.T) {
	_, c := setup(t)
	c.pay("k", order)
	c.pay("k", order)
	c.pay("k", "{}")
	for path, want := range map[string]string{
		"/healthz": `"ok"`, "/readyz": `"ready"`, "/": "curl -i localhost:8080/v1/payments",
		"/metrics": `idemkeeper_request_duration_seconds_count{idemkeeper_outcome="replayed",idemkeeper_route="POST /v1/payments"} 1`,
	} {
		if a := c.do("GET", path, "", "Authorization", ""); a.status != 200 || !strings.Contains(a.body, want) {
			t.Errorf("GET %s: %d %s, want %s in it", path, a.status, a.body, want)
		}
	}
	metrics := c.do("GET", "/metrics", "").body
	for _, want := range []string{`idemkeeper_step_duration_seconds_count{idemkeeper_route="POST /v1/payments",idemkeeper_step="handler"} 1`,
		`idemkeeper_request_duration_seconds_count{error_type="body-invalid",idemkeeper_outcome="refused",idemkeeper_route="POST /v1/payments"} 1`,
		`idemkeeper_open_records{idemkeeper_age="under-1m",idemkeeper_state="pending"} 0`, "idemkeeper_running_executions 0", "idemkeeper_running_oldest_seconds 0",
		`http_server_request_duration_seconds_count{http_request_method="POST",http_response_status_code="201",http_route="/v1/payments"} 2`} {
		if !strings.Contains(metrics, want) {
			t.Errorf("metrics have no %s", want)
		}
	}
}

// deaf is a ledger whose database has gone.
type deaf struct{ payments.Ledger }

func (deaf) Ping(context.Context) error { return errors.New("gone") }

// down is a store that cannot be reached.
type down struct{ driver.Store }

func (down) Ping(context.Context) error { return driver.ErrUnavailable }
func (down) Get(context.Context, driver.KeyID) (driver.Record, error) {
	return driver.Record{}, driver.ErrUnavailable
}

func TestNotReadyWhileSomethingIsUnreachable(t *testing.T) {
	b := newBench(t)
	c := b.instance(t, func(cfg *server.Config) { cfg.Ledger = deaf{cfg.Ledger} })
	c.do("GET", "/readyz", "").wantAnswer(t, "ledger gone", 503, "unavailable")
	c.do("GET", "/healthz", "").wantAnswer(t, "still alive", 200, "")

	b.store = down{b.store}
	c = b.instance(t, nil)
	c.do("GET", "/readyz", "").wantAnswer(t, "store gone", 503, "unavailable")
	c.pay("k", order).wantAnswer(t, "payment", 503, "unavailable")
	c.do("GET", "/v1/idempotency", "", "Idempotency-Key", "k").wantAnswer(t, "status", 503, "unavailable")
}
