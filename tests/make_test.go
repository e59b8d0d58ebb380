package tests

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// make test counts a skipped test as failed, unless it were run in the way of
// make quick. CI has to run make test.
func TestFullRunLeavesNoTestOut(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("make", "-C", "..", "-n", "test", "TEST_FLAGS=").CombinedOutput()
	if err != nil {
		t.Fatalf("make -n test: %v\n%s", err, out)
	}
	if run := string(out); !strings.Contains(run, "bin/testsummary -first") || strings.Contains(run, "-quick") || strings.Contains(run, "-short") {
		t.Errorf("make test would run %q, want bin/testsummary without -quick and -short", run)
	}
	ci, err := os.ReadFile("../.ci/run")
	if err != nil {
		t.Fatal(err)
	}
	if script := string(ci); !strings.Contains(script, "\nmake test ") || strings.Contains(script, "make quick") || strings.Contains(script, "step quick") {
		t.Error(".ci/run does not end with make test")
	}
}
