package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
)

// doubtful is a store with locks, whose records can be in doubt.
type doubtful struct {
	driver.Store
	t      *testing.T
	locker driver.Locker
	env    map[string]string
	dir    string // of the sheets
}

// onEachStore runs a test on Redis and on PostgreSQL, each with its own locks.
func onEachStore(t *testing.T, f func(s *doubtful)) {
	t.Helper()
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		f(onRedis(t))
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		f(onPostgres(t, scratch.Empty(t, testserver.SharedPostgres(t))))
	})
}

func onPostgres(t *testing.T, name string) *doubtful {
	t.Helper()
	store := migratedStore(t, name)
	db := scratch.Open(t, name)
	locker, err := sqllock.New(t.Context(), db.Write, db.Dialect, sqllock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = locker.Close(ctx)
	})
	return &doubtful{store, t, locker, map[string]string{"IDEMCTL_DATABASE": name}, t.TempDir()}
}

func onRedis(t *testing.T) *doubtful {
	t.Helper()
	store, server := openStore(t)
	return &doubtful{store, t, redisLocker(t, server), map[string]string{"IDEMCTL_REDIS": server.URL()}, t.TempDir()}
}

// doubt leaves an attempt of a key in doubt, with the answer of its handler.
func (s *doubtful) doubt(key string, answer *driver.Response) driver.KeyID {
	s.t.Helper()
	lease := beginUnder(s.t, s, s.locker, idem.Key(key))
	id := idem.NewKeyID("m", idem.Key(key))
	a := stateOf(s.t, s, idem.Key(key)).Attempt
	if got, err := s.Settle(s.t.Context(), id, driver.Settlement{Attempt: a, ID: a.Nonce, State: driver.StateUnknown, Response: answer, KeyTTL: time.Hour}); err != nil || !got.Settled {
		s.t.Fatalf("Settle() = %+v, %v", got, err)
	}
	if err := lease.Release(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// export writes the sheet of all doubts to a file. decide returns decision and answer of a key ID.
func (s *doubtful) export(decide func(keyID string) (decision, answer string)) (file string) {
	s.t.Helper()
	got := idemctl(s.t, s.env, "record", "export")
	if got.code != 0 || got.stderr != "" {
		s.t.Fatalf("record export = %+v", got)
	}
	file = filepath.Join(s.dir, "doubts.csv")
	s.edit(file, got.stdout, func(row map[string]string) { row["decision"], row["answer"] = decide(row["key_id"]) })
	return file
}

// edit writes a sheet with changed cells.
func (s *doubtful) edit(file, text string, change func(row map[string]string)) {
	s.t.Helper()
	rows, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, cells := range rows[1:] {
		row := map[string]string{}
		for i, name := range rows[0] {
			row[name] = cells[i]
		}
		change(row)
		for i, name := range rows[0] {
			cells[i] = row[name]
		}
	}
	var out strings.Builder
	w := csv.NewWriter(&out)
	if err := w.WriteAll(rows); err != nil {
		s.t.Fatal(err)
	}
	s.write(file, out.String())
}

func (s *doubtful) write(file, text string) string {
	s.t.Helper()
	if !filepath.IsAbs(file) {
		file = filepath.Join(s.dir, file)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return file
}

func (s *doubtful) read(file string) string {
	s.t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	return string(data)
}

// decide runs record decide, and checks its exit code and that the summary has a part.
func (s *doubtful) decide(code int, part, file string, args ...string) ran {
	s.t.Helper()
	got := idemctl(s.t, s.env, append([]string{"record", "decide", "--from", file, "--reason", "ticket 4711", "--by", "ada"}, args...)...)
	if got.code != code || !strings.Contains(got.stdout+got.stderr, part) {
		s.t.Errorf("record decide %q = %d\n%s%s, want exit code %d and %q", args, got.code, got.stdout, got.stderr, code, part)
	}
	return got
}

// states counts the records of the keys k0, k1, … by state.
func (s *doubtful) states(n int) map[driver.State]int {
	s.t.Helper()
	counts := map[driver.State]int{}
	for i := range n {
		counts[stateOf(s.t, s, idem.Key(fmt.Sprint("k", i))).State]++
	}
	return counts
}

func allNotApplied(string) (decision, answer string) { return "not-applied", "" }

var created = &driver.Response{Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(`{"id":"pay_kept"}`)}

func TestDecideByFile(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		t := s.t
		says := map[string][2]string{}
		for i, say := range [][2]string{{"applied", "answers/a.json"}, {"applied", "kept"}, {"not-applied", ""}, {"", ""}} {
			says[s.doubt(fmt.Sprint("k", i), created).String()] = say
		}
		if err := os.Mkdir(filepath.Join(s.dir, "answers"), 0o700); err != nil {
			t.Fatal(err)
		}
		s.write("answers/a.json", paid)
		file := s.export(func(id string) (decision, answer string) { return says[id][0], says[id][1] })

		s.decide(0, "would be: 3 settled, 0 already settled, 0 changed since, 0 locked, 0 failed; 0 by an earlier run, 1 left", file, "--dry-run")
		if got := s.states(4); got[driver.StateUnknown] != 4 {
			t.Fatalf("states after --dry-run = %v, want all in doubt", got)
		}
		if _, err := os.Stat(file + ".results.csv"); err == nil {
			t.Error("--dry-run has left a result file")
		}
		s.decide(0, "3 settled, 0 already settled, 0 changed since, 0 locked, 0 failed; 0 by an earlier run, 1 left", file)
		for key, want := range map[idem.Key]struct {
			state driver.State
			body  string
		}{"k0": {driver.StateCompleted, `{"id":"pay_1"}`}, "k1": {driver.StateCompleted, `{"id":"pay_kept"}`}, "k2": {driver.StateReleased, ""}, "k3": {driver.StateUnknown, `{"id":"pay_kept"}`}} {
			rec := stateOf(t, s, key)
			body := ""
			if rec.Response != nil {
				body = string(rec.Response.Body)
			}
			if rec.State != want.state || body != want.body {
				t.Errorf("record of %s is %v with %q, want %v with %q", key, rec.State, body, want.state, want.body)
			}
			if want.state != driver.StateUnknown && rec.Decision != (driver.Decision{By: "ada", Reason: "ticket 4711"}) {
				t.Errorf("decision on %s = %+v, want that of ada", key, rec.Decision)
			}
		}
		if results := s.read(file + ".results.csv"); strings.Count(results, "\n") != 4 || strings.Count(results, `"settled"`) != 3 {
			t.Errorf("results:\n%s, want three that are settled", results)
		}
		s.decide(0, "0 settled, 0 already settled, 0 changed since, 0 locked, 0 failed; 3 by an earlier run, 1 left", file)
		// A run that died has not written its results.
		s.decide(0, "0 settled, 3 already settled", file, "--results", filepath.Join(s.dir, "anew.csv"))
		s.decide(0, "0 settled, 3 already settled", file, "--results", filepath.Join(s.dir, "of-bob.csv"), "--by", "bob")
	})
}

// After a release the key may have run again before the second run of a file. The attempt of the
// file was settled by it all the same.
func TestDecideKnowsItsDecisionAfterTheKeyRanAgain(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		s.doubt("k0", nil)
		file := s.export(allNotApplied)
		s.decide(0, "1 settled", file)
		s.doubt("k0", nil) // the client has come again, and attempt 2 is in doubt too
		s.decide(0, "0 settled, 1 already settled", file, "--results", filepath.Join(s.dir, "lost.csv"))
		if rec := stateOf(s.t, s, "k0"); rec.State != driver.StateUnknown || rec.Attempt.Number != 2 {
			s.t.Errorf("record = %+v, want attempt 2 left in doubt", rec)
		}
	})
}

func TestDecideLeavesWhatHasChangedSince(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		t := s.t
		for _, key := range []string{"by-bob", "ran-again", "held"} {
			s.doubt(key, nil)
		}
		s.write("a.json", paid)
		file := s.export(func(string) (decision, answer string) { return "applied", "a.json" })
		for _, key := range []string{"by-bob", "ran-again"} {
			if got := idemctl(t, s.env, "record", "resolve", "--scope", "m", key, "--not-applied", "--by", "bob"); got.code != 0 {
				t.Fatalf("record resolve = %+v", got)
			}
		}
		s.doubt("ran-again", nil)
		lease, err := s.locker.TryAcquire(t.Context(), driver.LockRequest{KeyID: idem.NewKeyID("m", "held"), Nonce: driver.NewNonce()})
		if err != nil {
			t.Fatal(err)
		}
		got := s.decide(cli.ExitFailed, "0 settled, 0 already settled, 2 changed since, 1 locked, 0 failed", file)
		for _, want := range []string{"attempt 1 is released since", "by bob", "attempt 2 is unknown since", "locked: its holder runs", "3 of 3 decisions do not stand"} {
			if !strings.Contains(got.stderr, want) {
				t.Errorf("standard error has no %q:\n%s", want, got.stderr)
			}
		}
		if rec := stateOf(t, s, "ran-again"); rec.State != driver.StateUnknown || rec.Attempt.Number != 2 {
			t.Errorf("record = %+v, want attempt 2 in doubt", rec)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.decide(cli.ExitFailed, "1 settled, 0 already settled, 2 changed since, 0 locked", file)
	})
}

// A malformed line is named, and nothing is changed.
func TestDecideRefusesMalformedFiles(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	for i := range 3 {
		s.doubt(fmt.Sprint("k", i), created)
	}
	if err := os.Mkdir(filepath.Join(s.dir, "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret.json"), []byte(paid), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"out.json": filepath.Join(outside, "secret.json"), "up": outside} {
		if err := os.Symlink(target, filepath.Join(s.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	huge, err := os.Create(filepath.Join(s.dir, "huge.json"))
	if err == nil {
		err = huge.Truncate(1 << 30)
		_ = huge.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	s.write("text.json", "It is paid.")
	s.write("half.json", `{"status":201,"headers":{"Content-Type":["application/json"]},"body":"{"}`)
	s.write("grpc.json", `{"status":0}`)
	s.write("a.json", paid)
	exported := idemctl(t, s.env, "record", "export").stdout
	file := filepath.Join(s.dir, "doubts.csv")
	second := func(change func(row map[string]string)) func() {
		return func() {
			n := 1
			s.edit(file, exported, func(row map[string]string) {
				row["decision"] = "not-applied"
				if n++; n == 3 {
					change(row)
				}
			})
		}
	}
	answer := func(name string) func() {
		return second(func(row map[string]string) { row["decision"], row["answer"] = "applied", name })
	}
	text := func(text string) func() { return func() { s.write(file, text) } }
	lines := strings.SplitAfter(strings.ReplaceAll(exported, `"",""`+"\n", `"not-applied",""`+"\n"), "\n")
	tests := []struct {
		name string
		make func()
		want string
	}{
		{"another decision", second(func(row map[string]string) { row["decision"] = "yes" }), `line 3: decision "yes" is neither`},
		{"applied without an answer", answer(""), "line 3: applied without an answer"},
		{"an answer without applied", second(func(row map[string]string) { row["answer"] = "a.json" }), "line 3: it has an answer"},
		{"no key ID", second(func(row map[string]string) { row["key_id"] = "5f6c" }), "line 3: key_id"},
		{"an attempt ID that a spreadsheet has changed", second(func(row map[string]string) { row["attempt_id"] = "1.2E+31" }), "line 3: attempt_id"},
		{"one column sorted", second(func(row map[string]string) { row["operation_id"] = idem.NewKeyID("m", "k9").OperationID() }), "line 3: operation_id"},
		{"kept, and nothing was kept", second(func(row map[string]string) {
			row["decision"], row["answer"], row["answer_digest"] = "applied", "kept", ""
		}), "line 3: the answer is to be the kept one"},
		{"no such answer", answer("none.json"), `line 3: answer "none.json"`},
		{"an answer above the folder", answer("../a.json"), "not below the folder"},
		{"an absolute answer", answer(filepath.Join(s.dir, "a.json")), "not below the folder"},
		{"a link that leads out", answer("out.json"), "line 3:"},
		{"a folder that leads out", answer("up/secret.json"), "line 3:"},
		{"a folder for an answer", answer("sub"), "not a regular file"},
		{"an answer of a gigabyte", answer("huge.json"), "has more than"},
		{"an answer that is no JSON", answer("text.json"), "not a JSON object"},
		{"an answer whose body does not parse", answer("half.json"), "the body is not JSON"},
		{"an answer of another transport", answer("grpc.json"), "looks like HTTP"},
		{"a key twice", text(strings.Join(append(slices.Clone(lines[:4]), lines[1]), "")), "line 5: the key is in line 2 too"},
		{"a line that is cut off", text(lines[0] + lines[1] + `"5f","1"` + "\n"), "line 3: it has 2 cells"},
		{"a quote that does not end", text(lines[0] + lines[1] + `"5f`), "line 3"},
		{"no column for the attempt", text(strings.Replace(exported, `"attempt_id"`, `"attempt"`, 1)), "no column attempt_id"},
		{"a column twice", text(strings.Replace(exported, `"state"`, `"decision"`, 1)), "column decision twice"},
		{"an empty file", text(""), "no line with the names"},
		{"not UTF-8", text("\xff\xfe" + exported), "not UTF-8"},
		{"no such file", func() { _ = os.Remove(file) }, "no such file"},
	}
	for _, tt := range tests {
		tt.make()
		for _, args := range [][]string{nil, {"--dry-run"}} {
			got := s.decide(cli.ExitUsage, tt.want, file, args...)
			if got.stdout != "" {
				t.Errorf("%s: standard output %q, want nothing", tt.name, got.stdout)
			}
		}
		if got := s.states(3); got[driver.StateUnknown] != 3 {
			t.Fatalf("%s: states = %v, want all in doubt", tt.name, got)
		}
		if _, err := os.Stat(file + ".results.csv"); err == nil {
			t.Fatalf("%s: there is a result file", tt.name)
		}
	}
	// What spreadsheets do to a file without harm: a byte order mark, semicolons, empty lines, another order, more columns.
	s.write(file, "\ufeff"+strings.ReplaceAll(strings.Join([]string{lines[0], lines[3], lines[2], "\n,,,,,,,,,,,,\n", lines[1]}, ""), ",", ";"))
	s.decide(0, "would be: 3 settled", file, "--dry-run")
	for _, args := range [][]string{{"--from", file}, {"--from", file, "--reason", ""}, {"--reason", "x"}, {"--from", file, "--reason", "x", "--rate", "-1"},
		{"--from", file, "--reason", "x", "--rate", "NaN"}, {"--from", file, "--reason", "x", "--by", "sweeper"}, {"--from", file, "--reason", "x", "--transport", "smtp"},
		{"--from", file, "--reason", "x", "--key-ttl", "0s"}, {"--from", file, "--reason", "x", "--results", s.dir}, {"--from", file, "--reason", "x", "--results", file}} {
		if got := idemctl(t, s.env, append([]string{"record", "decide"}, args...)...); got.code != cli.ExitUsage {
			t.Errorf("record decide %q = %+v, want wrong use", args, got)
		}
	}
	if got := s.states(3); got[driver.StateUnknown] != 3 {
		t.Errorf("states = %v, want all in doubt", got)
	}
}

// A file of other servers changes nothing.
func TestDecideRefusesFilesOfOtherServers(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		s.doubt("k0", nil)
		file := s.export(allNotApplied)
		other := onRedis(s.t)
		other.decide(cli.ExitUsage, "line 2: the attempt ran under the lock domain", file)
	})
}

// The store of the file was replaced by an empty one, or by its data from before or after the export.
func TestDecideOnAStoreWithOtherData(t *testing.T) {
	t.Parallel()
	name := scratch.Empty(t, testserver.SharedPostgres(t))
	s := onPostgres(t, name)
	db := scratch.Open(t, name).Write
	for i := range 3 {
		s.doubt(fmt.Sprint("k", i), nil)
	}
	file := s.export(allNotApplied)
	execSQL(t, db, "CREATE TABLE backup AS TABLE idem_records")
	s.decide(0, "3 settled", file)
	s.decide(0, "3 by an earlier run", file)
	execSQL(t, db, "DELETE FROM idem_records")
	execSQL(t, db, "INSERT INTO idem_records TABLE backup")
	for _, flags := range [][]string{{"--dry-run"}, nil, nil} { // what was released may have run, and the store has lost it
		if got := s.decide(cli.ExitFailed, "3 changed since", file, flags...); !strings.Contains(got.stderr, "line 2: changed since: an earlier run released it") {
			t.Errorf("standard error %q, want that the store has older data", got.stderr)
		}
	}
	if got := s.states(3); got[driver.StateUnknown] != 3 {
		t.Errorf("states = %v, want all in doubt", got)
	}
	s.decide(0, "3 settled", s.export(allNotApplied), "--results", filepath.Join(s.dir, "w.csv")) // decided anew
	execSQL(t, db, "DELETE FROM idem_records")
	s.decide(cli.ExitUsage, "none of the first 3 keys has a record in this database", file, "--results", filepath.Join(s.dir, "x.csv"))
	s.doubt("k1", nil) // the key again, as attempt 1 of another history
	s.decide(0, "0 settled, 3 already settled", file, "--results", filepath.Join(s.dir, "y.csv"))
	execSQL(t, db, "DELETE FROM idem_decisions")
	s.decide(cli.ExitFailed, "0 settled, 0 already settled, 3 changed since", file, "--results", filepath.Join(s.dir, "z.csv"))
	if rec := stateOf(t, s, "k1"); rec.State != driver.StateUnknown {
		t.Errorf("record = %+v, want it in doubt", rec)
	}
}

// Text of services and clients is no formula in a spreadsheet, and no command for a terminal.
func TestExportGuardsText(t *testing.T) {
	t.Parallel()
	s := onRedis(t)
	id := s.doubt("k0", &driver.Response{Status: 500, Header: map[string][]string{"Content-Type": {"=cmd"}}})
	a := stateOf(t, s, "k0").Attempt
	for _, reason := range []string{`=HYPERLINK("http://evil";"x")`, "+1", "-1", "@a", "＝1", "'=1", "\t=1", "a\r\n\"=1\"\x1b"} {
		if res, err := s.Settle(t.Context(), id, driver.Settlement{Attempt: a, ID: driver.NewNonce(), State: driver.StateUnknown, Decision: driver.Decision{By: reason, Reason: "b"}}); err != nil || !res.Settled {
			t.Fatalf("Settle() = %+v, %v", res, err)
		}
		got := idemctl(t, s.env, "record", "export")
		rows, err := csv.NewReader(strings.NewReader(got.stdout)).ReadAll()
		if err != nil || len(rows) != 2 || strings.Count(got.stdout, "\n") != 2 {
			t.Fatalf("%q: %d rows, %v in %q", reason, len(rows), err, got.stdout)
		}
		for _, cell := range rows[1] {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@\t\r") || strings.HasPrefix(cell, "＝") || strings.ContainsAny(cell, "\r\n\t\x1b") {
				t.Errorf("%q: cell %q", reason, cell)
			}
		}
	}
	var row struct {
		Resolver string `json:"resolver"`
		KeyID    string `json:"key_id"`
	}
	if got := idemctl(t, s.env, "--json", "record", "export"); json.Unmarshal([]byte(got.stdout), &row) != nil || row.KeyID != id.String() || !strings.HasSuffix(row.Resolver, ": b") {
		t.Errorf("--json record export = %+v", got)
	}
}

func TestExportSelects(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		t := s.t
		var started []time.Time
		for i := range 3 {
			key := idem.Key(fmt.Sprint("k", i))
			s.doubt(string(key), created)
			started = append(started, stateOf(t, s, key).Started)
			for now := started[i]; now.Sub(started[i]) < 2*time.Millisecond; { // or the order is not defined
				var err error
				if now, err = s.Store.(driver.StoreInspector).Clock(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
		begin(t, s, "runs") // on POST /pay
		at := func(i int) string { return started[i].Format(time.RFC3339Nano) }
		tests := []struct {
			args []string
			want int
		}{
			{nil, 3}, {[]string{"--state", ""}, 4}, {[]string{"--state", "pending"}, 1}, {[]string{"--route", httpRoute}, 3}, {[]string{"--route", "POST /pay"}, 0},
			{[]string{"--since", at(1)}, 2}, {[]string{"--until", at(1)}, 1}, {[]string{"--since", at(1), "--until", at(2)}, 1}, {[]string{"--since", "1h"}, 3}, {[]string{"--until", "1h"}, 0},
		}
		for _, tt := range tests {
			got := idemctl(t, s.env, append([]string{"record", "export"}, tt.args...)...)
			if rows := strings.Count(got.stdout, "\n") - 1; got.code != 0 || rows != tt.want {
				t.Errorf("record export %q = %d rows, %+v, want %d", tt.args, rows, got, tt.want)
			}
		}
		for _, args := range [][]string{{"--state", "completed"}, {"--since", "yesterday"}, {"--until", "-1h"}, {"--since", "1h", "--until", "2h"}} {
			if got := idemctl(t, s.env, append([]string{"record", "export"}, args...)...); got.code != cli.ExitUsage || got.stdout != "" {
				t.Errorf("record export %q = %+v, want wrong use", args, got)
			}
		}
	})
}

// Two operators run the same file at once. Each attempt is settled once, and both are told that it stands.
func TestDecideTwiceAtOnce(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		t := s.t
		const keys = 60
		for i := range keys {
			s.doubt(fmt.Sprint("k", i), nil)
		}
		file := s.export(allNotApplied)
		var both sync.WaitGroup
		for _, by := range []string{"ada", "bob"} {
			both.Go(func() {
				args := []string{"record", "decide", "--from", file, "--reason", "r", "--by", by, "--rate", "0", "--results", filepath.Join(s.dir, by+".csv")}
				for {
					got := idemctl(t, s.env, args...)
					if got.code == 0 {
						return
					}
					if !strings.Contains(got.stdout, " 0 changed since") || !strings.Contains(got.stdout, " 0 failed") {
						t.Errorf("%s: %+v, want no more than locked keys", by, got)
						return
					}
				}
			})
		}
		both.Wait()
		results := s.read(filepath.Join(s.dir, "ada.csv")) + s.read(filepath.Join(s.dir, "bob.csv"))
		if n := strings.Count(results, `,"settled",`); n != keys {
			t.Errorf("%d results say settled, want %d:\n%s", n, keys, results)
		}
		for i := range keys {
			list, err := s.Store.(driver.StoreInspector).Decisions(t.Context(), idem.NewKeyID("m", idem.Key(fmt.Sprint("k", i))))
			if err != nil || len(list) != 1 {
				t.Errorf("Decisions() = %+v, %v, want one", list, err)
			}
		}
	})
}

// ranAsIdemctl makes the test binary run as idemctl, so that it can be killed.
const ranAsIdemctl = "IDEMKEEPER_TEST_AS_IDEMCTL"

// A run that is killed and started again settles each attempt once and forgets none.
func TestDecideSurvivesAKill(t *testing.T) {
	t.Parallel()
	onEachStore(t, func(s *doubtful) {
		t := s.t
		const keys = 300
		for i := range keys {
			s.doubt(fmt.Sprint("k", i), nil)
		}
		file := s.export(allNotApplied)
		results := file + ".results.csv"
		args := []string{"record", "decide", "--from", file, "--reason", "r", "--by", "ada", "--rate", "0"}
		kills := 0
		for before := 0; ; {
			cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
			cmd.Env = append(os.Environ(), ranAsIdemctl+"=1")
			for name, value := range s.env {
				cmd.Env = append(cmd.Env, name+"="+value)
			}
			var said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &said, &said
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			for kills < 3 && len(ended) == 0 {
				data, _ := os.ReadFile(results)
				if n := strings.Count(string(data), "\n"); n > before+40 {
					before = n
					kills++
					_ = cmd.Process.Kill()
					break
				}
				time.Sleep(time.Millisecond)
			}
			if err := <-ended; err == nil {
				break
			} else if code := cmd.ProcessState.ExitCode(); code >= 0 && !strings.Contains(said.String(), " 0 changed since") {
				t.Fatalf("record decide: %v\n%s", err, said.String())
			}
			// The locks of the dead run end after their time to live.
		}
		if kills == 0 {
			t.Error("no run was killed")
		}
		for i := range keys {
			id := idem.NewKeyID("m", idem.Key(fmt.Sprint("k", i)))
			list, err := s.Store.(driver.StoreInspector).Decisions(t.Context(), id)
			rec := stateOf(t, s, idem.Key(fmt.Sprint("k", i)))
			if err != nil || len(list) != 1 || rec.State != driver.StateReleased {
				t.Errorf("key %d is %v with %+v, %v, want it released once", i, rec.State, list, err)
			}
		}
		rows, err := csv.NewReader(strings.NewReader(s.read(results))).ReadAll()
		if err != nil {
			t.Fatalf("the result file: %v", err)
		}
		settled, stands := map[string]int{}, map[string]bool{}
		for _, row := range rows[1:] {
			if row[5] == "settled" {
				settled[row[0]]++
			}
			if row[5] != "locked" {
				stands[row[0]] = row[5] == "settled" || row[5] == "already settled"
			}
			if settled[row[0]] > 1 || row[5] != "locked" && !stands[row[0]] {
				t.Errorf("result %q", row)
			}
		}
		if len(stands) != keys {
			t.Errorf("results of %d lines, want %d", len(stands), keys)
		}
	})
}
