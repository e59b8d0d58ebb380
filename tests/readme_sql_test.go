package tests

import (
	"go/format"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// The README's diff protects the handler in testdata/handler with ten new lines. Without them a
// repeat pays again.
func TestREADMEDiffProtectsAHandlerOnPostgres(t *testing.T) {
	t.Parallel()
	before, err := os.ReadFile("testdata/handler/main.go")
	if err != nil {
		t.Fatal(err)
	}
	diff := regexp.MustCompile("(?s)```diff\n(.*?)```").FindStringSubmatch(readme(t))
	if diff == nil {
		t.Fatal("the README has no diff")
	}
	after, added := apply(t, string(before), diff[1])
	if formatted, err := format.Source([]byte(after)); err != nil || string(formatted) != after {
		t.Errorf("gofmt would change the handler after the diff (%v)", err)
	}
	if added != 10 {
		t.Errorf("the diff adds %d lines that are not empty, want the 10 that the README names", added)
	}
	for _, tt := range []struct {
		name, program string
		payments      int
	}{{"without it", string(before), 2}, {"with it", after, 1}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			name, db := emptyDatabase(t, testserver.SharedPostgres(t))
			for _, statement := range []string{
				"CREATE TABLE balances (merchant text PRIMARY KEY, amount bigint NOT NULL)",
				"INSERT INTO balances VALUES ('demo', 1000)",
				"CREATE TABLE payments (id bigserial PRIMARY KEY, payee text NOT NULL, amount bigint NOT NULL)",
			} {
				if _, err := db.Write.Exec(statement); err != nil {
					t.Fatal(err)
				}
			}
			client, _ := runREADMEProgram(t, tt.program, "DATABASE_URL="+name, "GIN_MODE=release")
			var bodies [2]string
			for i := range bodies {
				r, err := http.NewRequest(http.MethodPost, "http://service/payments", strings.NewReader(`{"to":"bob","amount":100}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Idempotency-Key", "order-1001")
				resp, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if bodies[i] = string(body); err != nil || resp.StatusCode != http.StatusCreated {
					t.Errorf("answer %d = %d %q, %v, want 201", i+1, resp.StatusCode, body, err)
				}
			}
			var payments, balance int
			err := db.Write.QueryRow("SELECT (SELECT count(*) FROM payments), amount FROM balances").Scan(&payments, &balance)
			if err != nil || payments != tt.payments || balance != 1000-100*payments || (bodies[0] == bodies[1]) != (payments == 1) {
				t.Errorf("%d payments, %v, a balance of %d and the answers %q, want %d payments", payments, err, balance, bodies, tt.payments)
			}
		})
	}
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
	return text, added
}

// emptyDatabase makes a database on a server, with the tables of the store, and returns its URL.
func emptyDatabase(t testing.TB, server string) (string, *database.DB) {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	name := "tests_" + idem.NewNonce().String()
	if u.Scheme == "mysql" {
		u.Path = "/mysql"
	}
	admin := openDatabase(t, u.String())
	drop := "DROP DATABASE " + name
	if u.Scheme != "mysql" {
		drop += " WITH (FORCE)"
	}
	t.Cleanup(func() {
		if _, err := admin.Write.Exec(drop); err != nil {
			t.Error(err)
		}
	})
	if _, err := admin.Write.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	db := openDatabase(t, u.String())
	if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect); err != nil {
		t.Fatal(err)
	}
	return u.String(), db
}

func openDatabase(t testing.TB, name string) *database.DB {
	t.Helper()
	db, err := database.Open(name, database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}
