package tests

import (
	"net/http"
	"strings"
	"testing"
)

// refusal is a row of the table of what clients see (design.md, section 8).
type refusal struct {
	what   string
	answer answer
	status int
	title  string
	code   string
	retry  bool // has Retry-After
}

// TestRefusals makes a live system refuse for every reason that HTTP can
// produce and compares what the client sees. The two that take time or a
// streaming handler are in library_test.go.
func TestRefusals(t *testing.T) {
	s, v, other := failover(t, flags("--resolver", "none"))
	c := other.demo()
	post := func(path, key, body string) answer {
		header := http.Header{}
		if key != "" {
			header["Idempotency-Key"] = []string{key}
		}
		return c.send(t.Context(), http.MethodPost, path, body, header)
	}
	token := c.issue(t)
	rows := []refusal{
		{"no key", post("/v1/payments", "", goodBody), 400, "Idempotency-Key is missing", "key-missing", false},
		{"no token", post("/v1/trades", "", goodBody), 400, "Idempotency-Key is missing", "key-missing", false},
		{"list of keys", post("/v1/payments", "a, b", goodBody), 400, "Idempotency-Key is malformed", "key-invalid", false},
		{"bad body", post("/v1/payments", "bad-body", "{"), 400, "Request body is invalid", "body-invalid", false},
		{"junk token", post("/v1/trades", "junk", goodBody), 403, "Token is unknown", "token-unknown", false},
		{"token of another", client{other.addr, "test"}.trade(token, amount, "x"), 403, "Token is unknown", "token-unknown", false},
		{"token as client key", post("/v1/payments", token, goodBody), 422, "Idempotency-Key is already used", "key-reused", false},
		{"other request", c.pay("warm-up", 2, "warm-up"), 422, "Idempotency-Key is already used", "key-reused", false},
		{"body over 1 MiB", post("/v1/payments", "large", goodBody+strings.Repeat(" ", 1<<20)), 413, "Request body is too large", "body-too-large", false},
	}

	const key = "unknown"
	reachLog("at=before-ledger")(t, v, key)
	rows = append(rows,
		refusal{"running elsewhere", c.pay(key, amount, key), 409, "A request is outstanding for this Idempotency-Key", "in-progress", true},
		refusal{"running here", v.demo().pay(key, amount, key), 409, "A request is outstanding for this Idempotency-Key", "in-progress", true},
		refusal{"other request, running elsewhere", c.pay(key, amount+1, key), 422, "Idempotency-Key is already used", "key-reused", false})
	v.kill(t)
	rows = append(rows,
		refusal{"interrupted", c.payUntil(patience, key, amount, key), 409, "Outcome is unknown", "outcome-unknown", false})

	// The holder is cut off from ZooKeeper for longer than it can trust its lease.
	p := s.zooKeeperProxy()
	cutOff := s.start("the one cut off", throughZooKeeper(p), latency(2*patience))
	done := cutOff.demo().paying("lost", amount, "lost")
	cutOff.waitLog(t, "at=before-ledger", op("lost"))
	downs[0].down(p)
	rows = append(rows, refusal{"cut off while running", <-done, 503, "Ownership was lost", "ownership-lost", true})
	rows = append(rows, refusal{"ZooKeeper down", cutOff.demo().pay("fresh", amount, "fresh"), 503, "Service unavailable", "unavailable", true})

	if _, err := s.redis.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	rows = append(rows, refusal{"Redis flushed", c.pay("fresh", amount, "fresh"), 503, "Service unavailable", "store-lost", true})
	s.redis.Kill()
	rows = append(rows, refusal{"Redis down", c.pay("fresh", amount, "fresh"), 503, "Service unavailable", "unavailable", true})

	for _, r := range rows {
		a := r.answer
		if !a.is(r.status, r.code) || a.problem.Title != r.title || a.problem.Detail == "" {
			t.Errorf("%s = %v, want %d %q with code %s", r.what, a, r.status, r.title, r.code)
			continue
		}
		if retry := a.header.Get("Retry-After"); (retry != "") != r.retry {
			t.Errorf("%s: Retry-After = %q, want one: %v", r.what, retry, r.retry)
		}
		if a.replayed() {
			t.Errorf("%s is marked as replayed", r.what)
		}
	}
	paidNever(t, c, "hostile")
	paidNever(t, c, "lost")
	paidNever(t, c, "fresh")
}

// Without an API key nothing is told, of keys least of all.
func TestUnauthorizedIsRefusedFirst(t *testing.T) {
	t.Parallel()
	in := startInstance(t, "one")
	if a := in.demo().pay("secret", amount, "secret"); a.status != 201 {
		t.Fatalf("payment = %v, want 201", a)
	}
	for _, token := range []string{"", "wrong", "demo2"} {
		a := client{in.addr, token}.pay("secret", amount, "secret")
		refused(t, "repeat with API key "+token, a, 401, "unauthorized")
	}
	// Another merchant's key of the same name is another key.
	a := client{in.addr, "test"}.pay("secret", amount+1, "theirs")
	if a.status != 201 || a.replayed() {
		t.Errorf("another merchant's payment = %v, want 201", a)
	}
}
