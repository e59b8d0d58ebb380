package repository

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A package for each way in which a test run can go, run for real. What go test takes for a
// success and is none counts as failed.
func TestCountOfTests(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip(testserver.LeftOut) // it runs go test in several modules
	}
	const head = "import (\n\t\"os\"\n\t\"testing\"\n)\n\nvar _ = os.Exit\n\n"
	dir := t.TempDir()
	for name, code := range map[string]string{
		"pass": head + "func TestA(t *testing.T) { t.Run(\"x\", func(t *testing.T) {}) }",
		"fail": head + "func TestA(t *testing.T) { t.Run(\"x\", func(t *testing.T) { t.Error(\"wrong\") }) }\nfunc TestB(t *testing.T) {}",
		"skip": head + "func TestA(t *testing.T) { t.Skip(\"no reason\") }",
		"here": head + "func TestA(t *testing.T) { t.Skip(\"" + testserver.NotRunHere + "SOME_VARIABLE names no server\") }",
		"left": head + "func TestA(t *testing.T) { t.Skip(\"" + testserver.LeftOut + "\") }",
		"main": head + "func TestMain(m *testing.M) { m.Run(); os.Exit(3) }\nfunc TestA(t *testing.T) {}",
		"exit": head + "func TestA(t *testing.T) { os.Exit(0) }",
		"hang": head + "func TestA(t *testing.T) { go func() { panic(\"out of bounds\") }(); select {} }",
		"type": "import \"testing\"\n\nfunc TestA(t *testing.T) { var x int = \"text\" }",
	} {
		write(t, filepath.Join(dir, name, "p_test.go"), "package p\n\n"+code+"\n")
	}
	write(t, filepath.Join(dir, "go.mod"), "module m\n\ngo 1.26\n")
	run := exec.Command("go", "test", "-json", "-trimpath", "./...")
	run.Dir = dir
	events, _ := run.Output() // some packages fail
	file := filepath.Join(dir, "events")
	write(t, file, string(events))
	for quick, want := range map[string][]string{
		"": {"NOT RUN: 1, SOME_VARIABLE names no server", "FAIL: m/fail TestA", "FAIL: m/fail TestA/x", "SKIPPED, which counts as failed: m/skip TestA",
			"SKIPPED, which counts as failed: m/left TestA", "FAIL (the package itself): m/main", ": m/exit TestA", ": m/hang TestA",
			"FAIL (the package itself): m/type", "4 passed, 8 failed"},
		"1": {"NOT RUN: 1, SOME_VARIABLE names no server", "SKIPPED, which counts as failed: m/skip TestA", "4 passed, 7 failed, 1 left out"},
	} {
		out, err := exec.Command("awk", "-v", "quick="+quick, "-v", "status=1", "-f", "../../scripts/count.awk", file).Output()
		for _, line := range want {
			if err == nil || !strings.Contains(string(out), line+"\n") {
				t.Errorf("quick %q: %v, no line %q in\n%s", quick, err, line, out)
			}
		}
	}
	for events, want := range map[string]string{
		"": "no test ran\n0 passed, 0 failed\n",
		`{"Action":"start","Package":"p"}` + "\n" + `{"Action":"run","Package":"p","Test":"TestA"}` + "\n": "NEVER ENDED: p TestA\n0 passed, 1 failed\n",
		skipped(`A/a_\"x\"`, "not run here: why\\n") + skipped(`A/a_\"y\"`, "because\\n"):                  "NOT RUN: 1, why\nSKIPPED, which counts as failed: p A/a_\\\"y\\\"\n0 passed, 1 failed\n",
		skipped("A", "not run here: why\\n") + skipped("A", "because\\n"):                                  "NOT RUN: 1, why\nSKIPPED, which counts as failed: p A\n0 passed, 1 failed\n",
	} {
		count := exec.Command("awk", "-f", "../../scripts/count.awk")
		count.Stdin = strings.NewReader(events)
		if out, err := count.Output(); err == nil || !strings.HasSuffix(string(out), want) {
			t.Errorf("events %q: %v, %q, want %q", events, err, out, want)
		}
	}
}

// skipped are the events of a test that is skipped.
func skipped(test, why string) string {
	return fmt.Sprintf("{\"Action\":\"run\",\"Package\":\"p\",\"Test\":\"%[1]s\"}\n{\"Action\":\"output\",\"Package\":\"p\",\"Test\":\"%[1]s\",\"Output\":\"%[2]s\"}\n"+
		"{\"Action\":\"skip\",\"Package\":\"p\",\"Test\":\"%[1]s\"}\n", test, why)
}

// What the script that make test calls does with its arguments, with modules that break, and with a
// run that breaks off. A stub stands for gotestsum, which prints and saves the events.
func TestRunOfTests(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip(testserver.LeftOut) // it runs go test in several modules
	}
	dir := t.TempDir()
	for name, text := range map[string]string{
		"good/go.mod": "module good\n\ngo 1.26\n", "good/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {}\n",
		"bad/go.mod": "module bad\n\ngo 1.26\n", "bad/p_test.go": "package p\n\nimport \"testing\"\n\nfunc TestB(t *testing.T) { t.Fail() }\n",
		"two/go.mod": "module two\n\ngo 1.26\n", "two/a/a_test.go": "package a\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) {}\n",
		"two/b/b_test.go": "package b\n\nimport \"testing\"\n\nfunc TestB(t *testing.T) {}\n", "broken/go.mod": "no module\n",
		"gotestsum": "#!/bin/bash\nwhile [[ $1 != -- ]]; do [[ $1 != --jsonfile ]] || file=$2; shift; done\nshift; \"$@\" >\"$file\" 2>/dev/null; status=$?; exit ${BREAKS_OFF:-$status}\n",
	} {
		write(t, filepath.Join(dir, name), text)
	}
	if err := os.Chmod(filepath.Join(dir, "gotestsum"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		env    string
		status int
		want   string
	}{
		{"-C good -- ./...", "", 0, "\n1 passed, 0 failed\n"},
		{"-first ./b -C two -C good -- ./...", "", 0, "\n3 passed, 0 failed\n"},
		{"-quick -C good -- ./...", "", 0, "\n1 passed, 0 failed, 0 left out\n"},
		{"-C good -C bad -- ./...", "", 1, "FAIL: bad TestB\n1 passed, 1 failed\n"},
		{"-C bad -C broken -- ./...", "", 1, "FAIL (the package itself): the module in broken\n0 passed, 2 failed\n"},
		{"-C broken -C good -- ./...", "", 1, "FAIL (the package itself): the module in broken\n1 passed, 1 failed\n"},
		{"-C bad -- ./...", "BREAKS_OFF=3", 1, "BROKE OFF: the run, with status 3\n0 passed, 2 failed\n"},
		{"-C good -- --test.short=true ./...", "", 1, "0 passed, 1 failed\n"},
		{"-C good -- -short ./...", "", 1, "0 passed, 1 failed\n"},
		{"-C good -- -run NoSuchTest ./...", "", 1, "no test ran\n0 passed, 0 failed\n"},
		{"-wrong -- ./...", "", 2, ""},
	} {
		script, err := filepath.Abs("../../scripts/test.sh")
		if err != nil {
			t.Fatal(err)
		}
		run := exec.Command(script, strings.Fields(c.args)...)
		run.Dir, run.Env = dir, append(os.Environ(), "GOTESTSUM="+filepath.Join(dir, "gotestsum"), c.env)
		out, _ := run.Output()
		if status := run.ProcessState.ExitCode(); status != c.status || !strings.HasSuffix(string(out), c.want) {
			t.Errorf("test.sh %s: status %d, want %d, and %q, want %q at its end", c.args, status, c.status, out, c.want)
		}
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
