package repository

import (
	"go/format"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The README's diff protects the handler in testdata/handler with ten new lines. Without them a
// repeat pays again.
func TestREADMEDiffProtectsAHandlerOnPostgres(t *testing.T) {
	t.Parallel()
	protectsOnPostgres(t, "handler", diffsOf(t, "README.md")[0], 10)
}

// The first diff of docs/adopting.md does the same on a pool of pgx, with nine.
func TestAdoptingDiffProtectsAHandlerOnPgx(t *testing.T) {
	t.Parallel()
	protectsOnPostgres(t, "handlerpgx", diffsOf(t, "docs/adopting.md")[0], 9)
}

// The second one protects a handler that calls a bank, with Redis and ten new lines.
func TestAdoptingDiffProtectsAHandlerOnRedis(t *testing.T) {
	t.Parallel()
	before, after := patched(t, "handlerredis", diffsOf(t, "docs/adopting.md")[1], 10)
	for name, tt := range map[string]struct {
		program string
		charges int64
	}{"without it": {before, 2}, "with it": {after, 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var charges atomic.Int64
			bank := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { charges.Add(1) }))
			t.Cleanup(bank.Close)
			client, _ := runREADMEProgram(t, tt.program, "REDIS_ADDR="+testserver.StartRedis(t).Addr(), "BANK_URL="+bank.URL, "GIN_MODE=release")
			if bodies := payTwice(t, client); charges.Load() != tt.charges || (bodies[0] == bodies[1]) != (tt.charges == 1) {
				t.Errorf("the bank was called %d times, with the answers %q, want %d times", charges.Load(), bodies, tt.charges)
			}
		})
	}
}

// patched returns a program in testdata before and after a diff, which has to add so many lines that are not empty.
func patched(t *testing.T, program, diff string, lines int) (before, after string) {
	t.Helper()
	text, err := os.ReadFile("testdata/" + program + "/main.go")
	if err != nil {
		t.Fatal(err)
	}
	after, added := apply(t, string(text), diff)
	if added != lines {
		t.Errorf("the diff adds %d lines that are not empty, want the %d that the page names", added, lines)
	}
	return string(text), after
}

func protectsOnPostgres(t *testing.T, program, diff string, lines int) {
	t.Helper()
	before, after := patched(t, program, diff, lines)
	for _, tt := range []struct {
		name, program string
		payments      int
	}{{"without it", before, 2}, {"with it", after, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			name, db := paymentsDatabase(t)
			client, _ := runREADMEProgram(t, tt.program, "DATABASE_URL="+name, "GIN_MODE=release")
			bodies := payTwice(t, client)
			var payments, balance int
			err := db.Write.QueryRow("SELECT (SELECT count(*) FROM payments), amount FROM balances").Scan(&payments, &balance)
			if err != nil || payments != tt.payments || balance != 1000-100*payments || (bodies[0] == bodies[1]) != (payments == 1) {
				t.Errorf("%d payments, %v, a balance of %d and the answers %q, want %d payments", payments, err, balance, bodies, tt.payments)
			}
			for _, order := range []struct { // the corrected order runs with the key of the wrong one
				body   string
				status int
			}{{`{"to":"bob","amount":"much"}`, 400}, {`{"to":"bob","amount":200}`, 201}} {
				if status, body := pay(t, client, "order-1002", order.body); status != order.status {
					t.Errorf("the order %s = %d %q, want %d", order.body, status, body, order.status)
				}
			}
		})
	}
}

// The diff in docs/getting-started.md protects the same handler, measures it and mounts the console,
// with fifteen new lines.
func TestGettingStartedDiffAddsMetricsAndConsole(t *testing.T) {
	t.Parallel()
	_, after := patched(t, "handler", diffsOf(t, "docs/getting-started.md")[0], 15)
	name, _ := paymentsDatabase(t)
	client, _ := runREADMEProgram(t, after, "DATABASE_URL="+name, "GIN_MODE=release", "CONSOLE_PASSWORD=secret")
	if bodies := payTwice(t, client); bodies[0] != bodies[1] {
		t.Errorf("the answers are %q, want the same one twice", bodies)
	}
	for _, tt := range []struct {
		path, password string
		status         int
		text           string
	}{
		{"/metrics", "", 200, `idemkeeper_outcome="replayed"`},
		{"/console/", "", 401, ""},
		{"/console/", "wrong", 401, ""},
		{"/console/", "secret", 200, "ada"},
		{"/console/health", "secret", 200, "Store"},
		{"/console/assets/console.css", "secret", 200, "color"},
	} {
		r, err := http.NewRequest(http.MethodGet, "http://service"+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if tt.password != "" {
			r.SetBasicAuth("ada", tt.password)
		}
		if status, body := send(t, client, r); status != tt.status || !strings.Contains(body, tt.text) {
			t.Errorf("GET %s with password %q = %d %q, want %d with %q", tt.path, tt.password, status, body, tt.status, tt.text)
		}
	}
}

// diffsOf are the diffs of a page.
func diffsOf(t *testing.T, page string) (diffs []string) {
	t.Helper()
	for _, p := range pages(t) {
		for _, b := range p.Blocks() {
			if p.Path == page && b.Language == "diff" {
				diffs = append(diffs, b.Code)
			}
		}
	}
	if len(diffs) == 0 {
		t.Fatalf("%s has no diff", page)
	}
	return diffs
}

// paymentsDatabase is a database for the handler in testdata.
func paymentsDatabase(t *testing.T) (name string, db *database.DB) {
	t.Helper()
	name, db = scratch.Database(t, testserver.SharedPostgres(t))
	for _, statement := range []string{
		"CREATE TABLE balances (merchant text PRIMARY KEY, amount bigint NOT NULL)",
		"INSERT INTO balances VALUES ('demo', 1000)",
		"CREATE TABLE payments (id bigserial PRIMARY KEY, payee text NOT NULL, amount bigint NOT NULL)",
	} {
		if _, err := db.Write.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	return name, db
}

// payTwice sends one payment twice with its key.
func payTwice(t *testing.T, client *http.Client) (bodies [2]string) {
	t.Helper()
	for i := range bodies {
		var status int
		if status, bodies[i] = pay(t, client, "order-1001", `{"to":"bob","amount":100}`); status != http.StatusCreated {
			t.Errorf("answer %d = %d %q, want 201", i+1, status, bodies[i])
		}
	}
	return bodies
}

// pay sends an order with a key.
func pay(t *testing.T, client *http.Client, key, order string) (status int, body string) {
	t.Helper()
	r, err := http.NewRequest(http.MethodPost, "http://service/payments", strings.NewReader(order))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", key)
	return send(t, client, r)
}

func send(t *testing.T, client *http.Client, r *http.Request) (status int, body string) {
	t.Helper()
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// apply applies a diff without line numbers. Each stretch between two lines "@@" has to be found
// once. added counts the new lines that are not empty.
func apply(t *testing.T, text, diff string) (after string, added int) {
	t.Helper()
	for hunk := range strings.SplitSeq(diff, "@@\n") {
		var before, now strings.Builder
		for line := range strings.Lines(hunk) {
			kind, rest := line[0], line[1:]
			if kind == '\n' {
				kind, rest = ' ', line
			}
			if kind != '+' {
				before.WriteString(rest)
			}
			if kind != '-' {
				now.WriteString(rest)
			}
			if kind == '+' && strings.TrimSpace(rest) != "" {
				added++
			}
		}
		if n := strings.Count(text, before.String()); n != 1 {
			t.Fatalf("the handler has %d times the lines\n%s", n, before.String())
		}
		text = strings.Replace(text, before.String(), now.String(), 1)
	}
	if formatted, err := format.Source([]byte(text)); err != nil || string(formatted) != text {
		t.Errorf("gofmt would change the handler after the diff (%v)", err)
	}
	return text, added
}
