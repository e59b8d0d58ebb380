package main

import (
	"errors"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// freshDatabases make an empty database of each kind, and return its URL.
var freshDatabases = map[string]func(*testing.T) string{
	"sqlite":   sqliteFile,
	"postgres": func(t *testing.T) string { t.Helper(); return scratch.Empty(t, testserver.SharedPostgres(t)) },
	"mariadb":  func(t *testing.T) string { t.Helper(); return scratch.Empty(t, testserver.SharedMariaDB(t)) },
	"mysql":    func(t *testing.T) string { t.Helper(); return scratch.Empty(t, testserver.SharedMySQL(t)) },
}

// onEachDatabase runs a test on an empty database of each kind.
func onEachDatabase(t *testing.T, test func(t *testing.T, database string)) {
	t.Helper()
	t.Parallel()
	for name, fresh := range freshDatabases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, fresh(t))
		})
	}
}

// onEachServer is onEachDatabase without SQLite, which serves one instance.
func onEachServer(t *testing.T, test func(t *testing.T, database string)) {
	t.Helper()
	onEachDatabase(t, func(t *testing.T, database string) {
		t.Helper()
		if !strings.HasPrefix(database, "sqlite:") {
			test(t, database)
		}
	})
}

func sqliteFile(t *testing.T) string {
	t.Helper()
	return "sqlite:" + filepath.Join(t.TempDir(), "ledger.db")
}

// sqlExec runs statements in a database.
func sqlExec(t *testing.T, name string, statements ...string) {
	t.Helper()
	db := scratch.Open(t, name)
	defer db.Close()
	for _, s := range statements {
		if _, err := db.Write.Exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
}

// withUser returns the URL of a database with another user.
func withUser(t *testing.T, name, user, password string) string {
	t.Helper()
	u, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(user, password)
	return u.String()
}

// idemctl runs a command on a database. A failure has the reason as its output.
func idemctl(t *testing.T, database string, args ...string) (output string, code int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), kit.Binary(t, "./cmd/idemctl"), args...)
	cmd.Env = []string{"IDEMCTL_DATABASE=" + database}
	out, err := cmd.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(failed.Stderr), failed.ExitCode()
	}
	return string(out), 0
}

// wantNoText fails the test if the process has said any of the texts.
func (p *process) wantNoText(texts ...string) {
	p.t.Helper()
	said := p.Stdout.All() + p.Stderr.All()
	for _, text := range texts {
		if strings.Contains(said, text) {
			p.t.Errorf("it said %q:\n%s", text, said)
		}
	}
}
