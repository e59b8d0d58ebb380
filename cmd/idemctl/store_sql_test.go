package main

import (
	"bytes"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// client is the command of a database that reads SQL from its standard input.
func client(t *testing.T, name string) *exec.Cmd {
	t.Helper()
	if file, ok := strings.CutPrefix(name, "sqlite:"); ok {
		return exec.CommandContext(t.Context(), "sqlite3", "-bail", file)
	}
	if strings.HasPrefix(name, "postgres:") {
		return exec.CommandContext(t.Context(), "psql", "-q", "-v", "ON_ERROR_STOP=1", name)
	}
	u, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), "mariadb", "--no-defaults", "-h", u.Hostname(), "-P", u.Port(), "-u", u.User.Username(), strings.TrimPrefix(u.Path, "/"))
}

// feed gives SQL to the client of a database.
func feed(t *testing.T, name, sql string) {
	t.Helper()
	cmd := client(t, name)
	cmd.Stdin = strings.NewReader(sql)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd.Args[0], err, out.String())
	}
}

// What is printed makes the tables, and nothing else does.
func TestPrintedMigrationRunsInTheClientOfTheDatabase(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, name string) {
		env := map[string]string{"IDEMCTL_DATABASE": name}
		printed := idemctl(t, env, "store", "migrate", "--print")
		if printed.code != 0 || !strings.Contains(printed.stdout, "CREATE TABLE") {
			t.Fatalf("store migrate --print = %+v, want SQL", printed)
		}
		scheme, file, _ := strings.Cut(name, ":")
		if _, err := os.Stat(file); scheme == "sqlite" && !os.IsNotExist(err) {
			t.Errorf("the file is there after --print: %v", err)
		}
		if again := idemctl(t, env, "store", "migrate", "--print"); again.stdout != printed.stdout {
			t.Error("--print has changed the database")
		}
		offline := idemctl(t, map[string]string{"IDEMCTL_DATABASE": scheme + "://"}, "store", "migrate", "--print", "--from", "0")
		if offline.stdout != printed.stdout {
			t.Errorf("--from 0 = %+v, want the same SQL", offline)
		}
		feed(t, name, printed.stdout)
		if got := idemctl(t, env, "store", "migrate", "--print"); got.code != 0 || got.stdout != "" || !strings.Contains(got.stderr, "nothing is to be done") {
			t.Errorf("store migrate --print afterwards = %+v, want nothing", got)
		}
		if got := idemctl(t, env, "record", "list"); got.code != 0 {
			t.Errorf("record list = %+v, want the tables", got)
		}
	})
}

func TestMigrationTellsWhatItMade(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, name string) {
		env := map[string]string{"IDEMCTL_DATABASE": name}
		got := idemctl(t, env, "store", "migrate")
		for _, want := range []string{"made idem_schema\n", "made idem_records\n", "made idem_readable\n", "have version 1\n"} {
			if !strings.Contains(got.stdout, want) {
				t.Errorf("store migrate = %+v, want %q", got, want)
			}
		}
		if hint := strings.Contains(got.stderr, "store grants"); hint == strings.HasPrefix(name, "sqlite:") {
			t.Errorf("store migrate = %+v, a hint at the grants: %t", got, hint)
		}
		if got := idemctl(t, env, "store", "migrate"); got.code != 0 || strings.Contains(got.stdout, "made") || got.stderr != "" {
			t.Errorf("store migrate again = %+v, want the version alone", got)
		}
		var row struct {
			Version int      `json:"schema_version"`
			From    int      `json:"from_version"`
			Made    []string `json:"made"`
		}
		got = idemctl(t, env, "--json", "--table-prefix", "json_", "store", "migrate")
		if err := json.Unmarshal([]byte(got.stdout), &row); err != nil || row.Version != 1 || row.From != 0 || !slices.Contains(row.Made, "json_records") {
			t.Errorf("store migrate --json = %+v, %v", got, err)
		}
	})
}

// as returns the URL of a database for a user of its own, who has the rights of a role, or none.
func as(t *testing.T, name, role string) (user, asUser string) {
	t.Helper()
	u, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	admin := scratch.Open(t, name)
	user = strings.TrimPrefix(u.Path, "/") + "_" + role
	if u.Scheme == "mysql" {
		execSQL(t, admin.Write, "CREATE USER "+user)
		t.Cleanup(func() { execSQL(t, admin.Write, "DROP USER "+user) })
	} else {
		execSQL(t, admin.Write, "CREATE ROLE "+user+" LOGIN")
		t.Cleanup(func() {
			execSQL(t, admin.Write, "DROP OWNED BY "+user)
			execSQL(t, admin.Write, "DROP ROLE "+user)
		})
	}
	got := idemctl(t, map[string]string{"IDEMCTL_DATABASE": name}, "store", "grants", "--for", role, user)
	if got.code != 0 || got.stderr != "" {
		t.Fatalf("store grants = %+v, want SQL", got)
	}
	feed(t, name, got.stdout)
	u.User = url.User(user)
	return user, u.String()
}

// The printed rights are enough for every command, and doctor names those that a service lacks.
func TestCommandsWorkWithTheRightsOfTheirRole(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, name string) {
		if strings.HasPrefix(name, "sqlite:") {
			return
		}
		s := migratedStore(t, name)
		settle(t, s, "doubtful", driver.StateUnknown, nil)
		settle(t, s, "other", driver.StateUnknown, nil)
		_, operator := as(t, name, "operator")
		env := map[string]string{"IDEMCTL_DATABASE": operator}
		for _, args := range [][]string{
			{"record", "list"},
			{"record", "show", "--scope", "m", "doubtful"},
			{"record", "resolve", "--scope", "m", "doubtful", "--not-applied", "--by", "alice"},
			{"record", "resolve", "--scope", "m", "other", "--applied", answerFile(t, `{"status":201,"body":"{}"}`), "--by", "alice"},
			{"token", "issue", "--scope", "m"},
			{"store", "retire", "another", "--no-zookeeper", "--by", "alice"},
		} {
			if got := idemctl(t, env, args...); got.code != 0 {
				t.Errorf("%q of an operator = %+v, want it done", args, got)
			}
		}
		got := examine(t, env)
		got.wantNoFinding(t, "fail")
		got.wantFinding(t, "warn", "database-rights", "no service can run as this user")
		got.wantFinding(t, "warn", "database-rights", "bindings")

		_, reader := as(t, name, "reader")
		env = map[string]string{"IDEMCTL_DATABASE": reader}
		for _, args := range [][]string{{"record", "list"}, {"record", "show", "--scope", "m", "doubtful"}} {
			if got := idemctl(t, env, args...); got.code != 0 {
				t.Errorf("%q of a reader = %+v, want it done", args, got)
			}
		}
		examine(t, env).wantFinding(t, "fail", "database-rights", "INSERT, UPDATE on ")
		if got := idemctl(t, env, "token", "issue", "--scope", "m"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "lacks rights: UPDATE on ") {
			t.Errorf("token issue of a reader = %+v, want the rights", got)
		}

		_, service := as(t, name, "service")
		examine(t, map[string]string{"IDEMCTL_DATABASE": service}).wantFinding(t, "ok", "database-rights", "")
	})
}

func TestDoctorFindsAPooler(t *testing.T) {
	t.Parallel()
	name := scratch.Empty(t, testserver.SharedPostgres(t))
	migratedStore(t, name)
	examine(t, map[string]string{"IDEMCTL_DATABASE": name}).wantFinding(t, "ok", "database-pooler", "no pooler")
	u, err := url.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	pooled := testserver.SharedPgBouncer(t).URL(strings.TrimPrefix(u.Path, "/"))
	got := examine(t, map[string]string{"IDEMCTL_DATABASE": pooled})
	got.wantNoFinding(t, "fail")
	got.wantFinding(t, "warn", "database-pooler", "docs/sql.md")
}

// Settings with which the server refuses some writes later fail at once, with what to set.
func TestDoctorFindsSettingsThatRefuseRecords(t *testing.T) {
	t.Parallel()
	name := scratch.Empty(t, testserver.SharedMariaDB(t))
	migratedStore(t, name)
	examine(t, map[string]string{"IDEMCTL_DATABASE": name + "?sql_mode=%27EMPTY_STRING_IS_NULL%27"}).wantFinding(t, "fail", "database-settings", "EMPTY_STRING_IS_NULL")

	server := testserver.StartMariaDB(t, "--log-bin", "--binlog-format=STATEMENT")
	name = scratch.Empty(t, server.URL())
	if got := idemctl(t, map[string]string{"IDEMCTL_DATABASE": name}, "store", "migrate"); got.code != 0 {
		t.Fatalf("store migrate = %+v, want it done", got)
	}
	examine(t, map[string]string{"IDEMCTL_DATABASE": name}).wantFinding(t, "fail", "database-settings", "binlog_format is STATEMENT")
}
