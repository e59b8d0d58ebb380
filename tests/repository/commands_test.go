package repository

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/documents"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Why no test runs a command.
const (
	unreleased = "nothing is released, so it cannot be downloaded. make release installs the commands from packed modules"
	byTheShell = "it only sets what the next lines use"
	inCI       = "it takes minutes, or builds tools from the module proxy. .ci/run runs it"
)

// commandsRun says for each command in a block of a document which test runs it, or why none does. The
// first entry that fits counts. The page may be left out, and the command may go on after begins.
var commandsRun = []struct{ page, begins, test, why string }{
	{page: "README.md", begins: "curl", test: "TestREADMEProgramRuns"},
	{begins: "curl", test: "TestCurlLinesAnswerAsTheySay"},
	{begins: "idemctl", test: "TestCommandsInDocumentsRun"},
	{begins: "go run ./example-payments", test: "TestSampleStartsAsTheDocumentsSay"},
	{page: "docs/crashtest.md", begins: "psql", test: "TestCrashtestPagePrintsItsTable"},
	{page: "docs/crashtest.md", begins: "go test", test: "TestCrashtestPagePrintsItsTable"},
	{page: "docs/own-table.md", begins: "go test", test: "TestBankPaymentsSurvive"}, // with the variable in make crashtest
	{begins: "make test", test: "TestRunOfTests"},
	{begins: "make quick", test: "TestRunOfTests"},
	{begins: "make apicheck", test: "TestAPICheck"},
	{begins: "make load DELAY=1ms", test: "TestLoadOverANetwork"},
	{begins: "make load", test: "TestLoad"},
	{begins: "make lint", why: inCI},
	{begins: "make model", why: inCI},
	{begins: "go get", why: unreleased},
	{begins: "go install", why: unreleased},
	{begins: "go run github.com/", why: unreleased},
	{begins: "git clone", why: "it needs the Internet"},
	{begins: "cd", why: byTheShell},
	{begins: "export", why: byTheShell},
}

// Every command in a block of a document is run by a test that is named here, or has a reason.
func TestCommandsAreRun(t *testing.T) {
	t.Parallel()
	exists, used := testNames(t), make([]bool, len(commandsRun))
	for _, p := range pages(t) {
		for _, c := range commandsOf(t, p) {
			line := strings.Join(c.Words, " ")
			i := slices.IndexFunc(commandsRun, func(e struct{ page, begins, test, why string }) bool {
				return (e.page == "" || e.page == p.Path) && strings.HasPrefix(line, e.begins)
			})
			if i < 0 {
				t.Errorf("%s: no test runs %q: add one to commandsRun, or the reason", p.Path, line)
				continue
			}
			used[i] = true
		}
		if indented.MatchString(p.Text) {
			t.Errorf("%s has a block of code that is indented, which no test finds", p.Path)
		}
	}
	for i, e := range commandsRun {
		if !used[i] {
			t.Errorf("no document has a command %q any more", e.begins)
		}
		if (e.test == "") == (e.why == "") || e.test != "" && !exists[e.test] {
			t.Errorf("%q names the test %q and the reason %q, want a test that exists or a reason", e.begins, e.test, e.why)
		}
	}
}

var indented = regexp.MustCompile("(?m)^[ \t]+```")

// The sample starts with the flags of each line in a document, on servers of the test, and pays once.
func TestSampleStartsAsTheDocumentsSay(t *testing.T) {
	t.Parallel()
	for _, p := range pages(t) {
		for _, c := range commandsOf(t, p) {
			flags, ok := strings.CutPrefix(strings.Join(c.Words, " ")+" ", "go run ./example-payments ")
			if !ok {
				continue
			}
			t.Run(p.Path+" "+flags, func(t *testing.T) {
				t.Parallel()
				args := strings.Fields(flags)
				for i, arg := range args {
					switch arg {
					case "127.0.0.1:2181":
						args[i] = strings.Join(testserver.SharedZooKeeper(t), ",") + testserver.Chroot(t)
						args = append(args, "--zookeeper-tick", kit.Tick.String())
					case "redis://127.0.0.1:6379":
						args[i] = testserver.StartRedis(t).URL()
					case "postgres://payments@127.0.0.1/payments":
						args[i] = scratch.Empty(t, testserver.SharedPostgres(t))
					}
				}
				client := kit.StartInstance(t, "the sample", args...).HTTPClient()
				kit.WantPaidOnce(t, "a payment and its repeat", client, "order-1001")
			})
		}
	}
}

// The test in docs/crashtest.md, put beside a service as the page says, prints the table of the page.
func TestCrashtestPagePrintsItsTable(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip(testserver.LeftOut)
	}
	const path = "docs/crashtest.md"
	all := pages(t)
	page := all[slices.IndexFunc(all, func(p documents.Page) bool { return p.Path == path })]
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	name, dir := scratch.Empty(t, testserver.SharedPostgres(t)), t.TempDir()
	var table [][]string
	for _, b := range page.Blocks() {
		switch {
		case b.Language == "go" && strings.HasPrefix(b.Code, "package "):
			write(t, filepath.Join(dir, "crash_test.go"), b.Code)
		case strings.HasPrefix(b.Code, "point "):
			table = cells(b.Code)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(root, "tests", "crashpage", "crash_test.go"): filepath.Join(dir, "crash_test.go")}})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "overlay.json"), string(overlay))
	binary := filepath.Join(dir, "crash.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", binary, "-overlay", filepath.Join(dir, "overlay.json"), "./tests/crashpage")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("go test -c: %v\n%s", err, out)
	}
	printed := ""
	for _, c := range commandsOf(t, page) {
		words := slices.Clone(c.Words)
		switch strings.Join(words[:2], " ") {
		case "psql $TEST_DATABASE_URL":
			words[1] = name
		case "go test":
			words = []string{binary, "-test.v"}
		default:
			continue
		}
		run := exec.CommandContext(t.Context(), words[0], words[1:]...)
		run.Dir, run.Env = dir, append(os.Environ(), "TEST_DATABASE_URL="+name)
		out, err := run.CombinedOutput()
		if passes := words[0] == "psql"; (err == nil) != passes { // the handler of the page has faults
			t.Fatalf("%q: %v\n%s", words, err, out)
		}
		printed = string(out)
	}
	columns := cells(printed)
	at := slices.IndexFunc(columns, func(row []string) bool { return row[0] == "point" })
	if at < 0 || len(table) < 2 || len(columns) < at+len(table) {
		t.Fatalf("the page has the table %q, and go test printed\n%s", table, printed)
	}
	for i, row := range table[1:] {
		got := columns[at+1+i]
		for j, column := range columns[at] {
			want := []string{"once", "left out"} // as the page says of the columns that it leaves out
			if k := slices.Index(table[0], column); k >= 0 {
				want = []string{effects.ReplaceAllString(row[k], "2 EFFECTS")}
			}
			if j >= len(got) || !slices.Contains(want, effects.ReplaceAllString(got[j], "2 EFFECTS")) {
				t.Errorf("column %q of %q is not %q, as the page says\n%s", column, got, want, printed)
			}
		}
	}
}

// effects are more than one. How many depends on who comes first.
var effects = regexp.MustCompile(`^\d+ EFFECTS$`)

var gap = regexp.MustCompile(`\s{2,}`)

// cells are the columns of each line that is not empty.
func cells(text string) (rows [][]string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			rows = append(rows, gap.Split(line, -1))
		}
	}
	return rows
}
