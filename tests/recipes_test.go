package tests

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

// wantExitLine fails the test unless a command ended with this exit code and one line of
// idemctl's that holds all parts.
func wantExitLine(t testing.TB, what string, got result, code int, parts ...string) {
	t.Helper()
	_, line, ok := strings.Cut(got.stderr, "idemctl: ") // a shell may have said something before
	if got.code != code || !ok || strings.Count(line, "\n") != 1 || !holdsAll(line, parts) {
		t.Errorf("%s: exit code %d, %q, want %d and a line with %q", what, got.code, got.stderr, code, parts)
	}
}

// wantOutput fails the test unless a command ended with 0, printed this and
// complained of nothing.
func wantOutput(t testing.TB, what string, got result, stdout string) {
	t.Helper()
	if got.code != 0 || got.stdout != stdout || got.stderr != "" {
		t.Errorf("%s = %q, %q, exit code %d, want %q and 0", what, got.stdout, got.stderr, got.code, stdout)
	}
}

// waitForPlaces waits until n clients are in line at a path.
func (s *system) waitForPlaces(path string, n int) {
	s.t.Helper()
	conn := s.zooKeeper()
	eventually(s.t, fmt.Sprintf("%d in line", n), func() error {
		if len(s.children(conn, s.chroot+path)) != n {
			return errNotYet
		}
		return nil
	})
	conn.Close()
}

func TestHelpOfTheRecipesHasExamples(t *testing.T) {
	t.Parallel()
	r := zooKeeperOnly(t, nil)
	for _, name := range []string{"lock", "semaphore", "elect", "queue", "queue offer", "queue peek", "queue poll", "queue len"} {
		got := r.runIdemctl(append(strings.Fields(name), "--help")...)
		if got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "Examples:\n") || strings.Count(got.stdout, " "+name+" ") < 2 {
			t.Errorf("%s --help: exit code %d, %q, want examples in:\n%s", name, got.code, got.stderr, got.stdout)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	r := zooKeeperOnly(t, nil)
	got := r.runIdemctl("completion", "bash")
	check := exec.Command("bash", "-n")
	check.Stdin = strings.NewReader(got.stdout)
	if out, err := check.CombinedOutput(); err != nil || got.code != 0 || !strings.Contains(got.stdout, "idemctl") {
		t.Errorf("completion bash: exit code %d, %q; bash -n says %v, %s", got.code, got.stderr, err, out)
	}
	if got := r.runIdemctl("__complete", "queue", "p"); got.code != 0 || !strings.Contains(got.stdout, "peek") || !strings.Contains(got.stdout, "poll") {
		t.Errorf("completion of \"queue p\" = %q, exit code %d, want peek and poll", got.stdout, got.code)
	}
}
