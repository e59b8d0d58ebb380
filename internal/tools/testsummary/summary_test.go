package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// The modules of the tests lie in new folders each time. Without the paths of the folders in
// the compiled packages, the second run takes them from Go's cache.
func TestMain(m *testing.M) {
	if err := os.Setenv("GOFLAGS", strings.TrimSpace(os.Getenv("GOFLAGS")+" -trimpath")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// A module for each way in which a test run can go, run for real.
func TestRun(t *testing.T) {
	t.Parallel()
	const head = "package p\n\nimport (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\n"
	tests := []struct {
		name  string
		files map[string]string
		args  []string
		ok    bool
		last  string
		says  []string // what the output has to hold
		hides []string // and what it must not
		order []string // what has to come after each other
	}{
		{
			name: "tests and subtests that pass count alike",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) { t.Log("chatter"); t.Run("x", func(t *testing.T) {}); t.Run("y", func(t *testing.T) {}) }
func TestB(t *testing.T) {}
func Example() {
	// Output:
}`},
			ok: true, last: "5 passed, 0 failed", says: []string{"ok   m ", "5 passed, 0 failed\n"}, hides: []string{"chatter"},
		},
		{
			name: "a failing subtest fails its parent and is shown in full",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) { t.Run("x", func(t *testing.T) { t.Log("first"); t.Error("second") }) }
func TestB(t *testing.T) { t.Log("quiet") }`},
			last: "1 passed, 2 failed", says: []string{"FAIL: m TestA/x", "first", "second", "FAIL m "}, hides: []string{"quiet", "=== RUN"},
		},
		{
			name: "the end repeats the first messages of a failing test, without its other output",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) { t.Error("first\nrest of the first"); println("loud"); for range 9 { t.Error("more") } }`},
			last: "0 passed, 1 failed",
			says: []string{"loud", "\n\nFAIL: m TestA\n    p_test.go:11: first\n" + strings.Repeat("    p_test.go:11: more\n", 4) + "0 passed"},
		},
		{
			name: "a skipped test counts as failed and tells why",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) { t.Skip("no server here") }
func TestB(t *testing.T) {}`},
			last: "1 passed, 1 failed", says: []string{"SKIPPED, which counts as failed: m TestA", "no server here"},
		},
		{
			name: "a quick run counts what needs a server as left out, and any other skip as failed",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) { if testing.Short() { t.Skip("` + testserver.LeftOut + `") } }
func TestB(t *testing.T) { t.Skip("no reason") }
func TestC(t *testing.T) {}`},
			args: []string{"-quick", "./..."},
			last: "1 passed, 1 failed, 1 left out", says: []string{"SKIPPED, which counts as failed: m TestB"},
		},
		{
			name: "a full run counts a test that was left out as failed",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) { t.Skip("` + testserver.LeftOut + `") }`},
			last: "0 passed, 1 failed",
		},
		{
			name: "a test whose server cannot be here is told of and not counted",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) { t.Run("x", func(t *testing.T) { t.Skip("` + testserver.NotRunHere + `SOME_VARIABLE names no server") }) }
func TestB(t *testing.T) { t.Skip("` + testserver.NotRunHere + `SOME_VARIABLE names no server") }`},
			ok: true, last: "1 passed, 0 failed", says: []string{"NOT RUN: 2, SOME_VARIABLE names no server\n"},
		},
		{
			name:  "a full run refuses -short",
			files: map[string]string{"p_test.go": head + "func TestA(t *testing.T) {}"},
			args:  []string{"-race", "-test.short=true", "./..."},
			last:  "0 passed, 1 failed", says: []string{"-test.short=true would leave tests out"},
		},
		{
			name: "a package that does not compile counts as failed",
			files: map[string]string{
				"p_test.go": head + "func TestA(t *testing.T) {}",
				"q/q.go":    "package q\n\nvar x int = \"text\"\n", "q/q_test.go": "package q\n",
			},
			last: "1 passed, 1 failed", says: []string{"FAIL: m/q (the package itself)", "cannot use \"text\""},
		},
		{
			name:  "a test file that vet refuses counts as failed",
			files: map[string]string{"p_test.go": head + `func TestA(t *testing.T) { t.Errorf("%d", "text") }`},
			last:  "0 passed, 1 failed", says: []string{"wrong type"},
		},
		{
			name: "an exit from TestMain counts as failed",
			files: map[string]string{"p_test.go": head + `
func TestMain(m *testing.M) { m.Run(); os.Stdout.WriteString("leaked\n"); os.Exit(3) }
func TestA(t *testing.T) {}`},
			last: "1 passed, 1 failed", says: []string{"FAIL: m (the package itself)", "leaked"},
		},
		{
			name: "an exit within a test counts as failed",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) {}
func TestB(t *testing.T) { os.Exit(0) }`},
			last: "1 passed, 1 failed", says: []string{"m TestB"},
		},
		{
			name: "a panic fails the test it hit",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) { go func() { panic("out of bounds") }(); select {} }`},
			last: "0 passed, 1 failed", says: []string{"out of bounds", "m TestA"},
		},
		{
			name:  "a test that hits the time-out fails",
			files: map[string]string{"p_test.go": head + `func TestA(t *testing.T) { select {} }`},
			args:  []string{"-timeout", "100ms"},
			last:  "0 passed, 1 failed", says: []string{"m TestA"},
		},
		{
			name:  "no test at all is a failure",
			files: map[string]string{"p.go": "package p\n"},
			last:  "0 passed, 0 failed", says: []string{"?    m [no test files]", "no test ran"},
		},
		{
			name: "a package that cannot be found is a failure",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) {}`},
			args: []string{"./nowhere"},
			last: "0 passed, 1 failed", says: []string{"nowhere"},
		},
		{
			name: "flags of go test that do not exist are a failure",
			files: map[string]string{"p_test.go": head + `
func TestA(t *testing.T) {}`},
			args: []string{"-nosuchflag"},
			last: "0 passed, 1 failed", says: []string{"nosuchflag"},
		},
		{
			name: "several modules are counted in one line",
			files: map[string]string{
				"p_test.go": head + "func TestA(t *testing.T) {}",
				"n/go.mod":  "module n\n\ngo 1.26\n", "n/n_test.go": "package n\n\nimport \"testing\"\n\nfunc TestB(t *testing.T) {}\nfunc TestC(t *testing.T) {}\n",
			},
			args: []string{"-C", ".", "-C", "n", "./..."},
			ok:   true, last: "3 passed, 0 failed", says: []string{"ok   m ", "ok   n "},
		},
		{
			name: "packages that come first are of the first module, and run once",
			files: map[string]string{
				"a_test.go":   head + "func TestA(t *testing.T) {}",
				"z/z_test.go": "package z\n\nimport \"testing\"\n\nfunc TestZ(t *testing.T) {}\n",
				"n/go.mod":    "module n\n\ngo 1.26\n", "n/n_test.go": "package n\n\nimport \"testing\"\n\nfunc TestB(t *testing.T) {}\n",
			},
			args: []string{"-first", "./z", "-C", ".", "-C", "n", "-p=1", "./..."},
			ok:   true, last: "3 passed, 0 failed", says: []string{"ok   m ", "ok   n "}, order: []string{"ok   m/z ", "ok   m "},
		},
		{
			name: "a module that breaks counts as failed, whatever failed in the one before",
			files: map[string]string{
				"p_test.go": head + `func TestA(t *testing.T) { t.Error("first") }`,
				"n/go.mod":  "module n\n\nnonsense\n",
			},
			args: []string{"-C", ".", "-C", "n", "./..."},
			last: "0 passed, 2 failed", says: []string{"FAIL: m TestA", "nonsense"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, "go.mod", "module m\n\ngo 1.26\n")
			for name, text := range tt.files {
				write(t, dir, name, text)
			}
			args := tt.args
			if len(args) == 0 || strings.HasPrefix(args[0], "-") && !slices.Contains(args, "./...") {
				args = append(args, "./...")
			}
			var out strings.Builder
			ok := run(t.Context(), dir, args, &out)
			lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
			if last := lines[len(lines)-1]; ok != tt.ok || last != tt.last {
				t.Errorf("run(%q) = %v, %q, want %v, %q", args, ok, last, tt.ok, tt.last)
			}
			for _, want := range tt.says {
				if !strings.Contains(out.String(), want) {
					t.Errorf("run(%q) does not say %q", args, want)
				}
			}
			rest := out.String()
			for _, want := range tt.order {
				_, after, found := strings.Cut(rest, want)
				if !found {
					t.Errorf("run(%q) does not say %q, or too early", args, want)
				}
				rest = after
			}
			for _, unwanted := range tt.hides {
				if strings.Contains(out.String(), unwanted) {
					t.Errorf("run(%q) says %q", args, unwanted)
				}
			}
			if t.Failed() {
				t.Logf("output:\n%s", out.String())
			}
		})
	}
}

func TestEventsThatBreakOff(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := newSummary(&out)
	s.read(strings.NewReader(`go: downloading something
{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"on the way\n"}
{"Action":"run","Package":"p","Test":"TestB"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"start","Package":"q"}
{"Action":`))
	s.endRun(errors.New("signal: killed"), s.failed)
	s.finish()
	for _, want := range []string{
		"go: downloading", "on the way", "NEVER ENDED: p TestA", "FAIL: q (the package itself)", "FAIL: go test: signal: killed",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output does not say %q", want)
		}
	}
	if want := "\n1 passed, 3 failed\n"; s.ok() || !strings.HasSuffix(out.String(), want) {
		t.Errorf("finish() = %v, %q, want false and the last line %q", s.ok(), out.String(), want)
	}
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
