package tests

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// recipes is what the commands of one test share: a chroot of an ensemble.
type recipes struct {
	t      testing.TB
	zk     []string // hosts
	chroot string

	// session outlasts what a busy machine does to a process. Tests that wait
	// for its end have a brief one.
	session time.Duration
}

func newRecipes(t testing.TB) *recipes { return newRecipesOn(t, testserver.SharedZooKeeper(t)) }

func newRecipesOn(t testing.TB, hosts []string) *recipes {
	return &recipes{t, hosts, testserver.Chroot(t), 30 * time.Second}
}

// brief gives the same chroot, in sessions that are soon over.
func (r *recipes) brief() *recipes { return &recipes{r.t, r.zk, r.chroot, sessionTimeout} }

// through gives the same chroot behind a proxy.
func (r *recipes) through(p *testserver.Proxy) *recipes {
	return &recipes{r.t, []string{p.Addr()}, r.chroot, r.session}
}

// command is a command line of idemctl.
func (r *recipes) command(args ...string) *exec.Cmd {
	r.t.Helper()
	cmd := exec.Command(binary(r.t, "./cmd/idemctl"), args...)
	cmd.SysProcAttr = childAttr()
	cmd.Env = append(os.Environ(),
		"IDEMCTL_ZOOKEEPER="+strings.Join(r.zk, ",")+r.chroot,
		"IDEMCTL_SESSION_TIMEOUT="+r.session.String(), "IDEMCTL_ZOOKEEPER_TICK="+tick.String(),
		"GORACE=atexit_sleep_ms=0") // else each run ends a second late
	return cmd
}

// start runs idemctl, without waiting for anything.
func (r *recipes) start(args ...string) *instance {
	r.t.Helper()
	return spawn(r.t, "idemctl "+strings.Join(args, " "), r.command(args...))
}

// ran is what a command left.
type ran struct {
	code           int
	stdout, stderr string
}

// run runs idemctl to its end.
func (r *recipes) run(args ...string) ran {
	r.t.Helper()
	return finish(r.t, r.start(args...))
}

func finish(t testing.TB, in *instance) ran {
	t.Helper()
	happens(t, "exit of "+in.name, in.exited)
	return ran{in.code, in.stdout.all(), in.stderr.all()}
}

// says fails the test unless a command ended with this exit code and one line of
// idemctl's that holds all parts.
func says(t testing.TB, what string, got ran, code int, parts ...string) {
	t.Helper()
	_, line, ok := strings.Cut(got.stderr, "idemctl: ") // a shell may have said something before
	if got.code != code || !ok || strings.Count(line, "\n") != 1 || !holdsAll(line, parts) {
		t.Errorf("%s: exit code %d, %q, want %d and a line with %q", what, got.code, got.stderr, code, parts)
	}
}

// prints fails the test unless a command ended with 0, printed this and
// complained of nothing.
func prints(t testing.TB, what string, got ran, stdout string) {
	t.Helper()
	if got.code != 0 || got.stdout != stdout || got.stderr != "" {
		t.Errorf("%s = %q, %q, exit code %d, want %q and 0", what, got.stdout, got.stderr, got.code, stdout)
	}
}

// waitOut waits for a line on standard output that holds all parts.
func (in *instance) waitOut(t testing.TB, parts ...string) string {
	t.Helper()
	var line string
	eventually(t, strings.Join(parts, " ")+" from "+in.name, func() error {
		var ok bool
		if line, ok = in.stdout.find(parts...); ok {
			return nil
		}
		if err := in.ended(); err != nil {
			t.Fatalf("%v:\n%s", err, in.stderr.tail(20))
		}
		return errNotYet
	})
	return line
}

// awaitLine waits until so many are in line at a path.
func (r *recipes) awaitLine(path string, n int) {
	r.t.Helper()
	s := system{t: r.t, zk: r.zk}
	conn := s.zooKeeper()
	eventually(r.t, fmt.Sprintf("%d in line", n), func() error {
		if len(s.children(conn, r.chroot+path)) != n {
			return errNotYet
		}
		return nil
	})
	conn.Close()
}

// all is everything that was printed.
func (l *logbook) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var b strings.Builder
	for _, line := range l.lines {
		b.WriteString(line + "\n")
	}
	return b.String() + string(l.rest)
}

// spawn starts a process of any program as an instance. It is killed in the
// test's clean-up.
func spawn(t testing.TB, name string, cmd *exec.Cmd) *instance {
	t.Helper()
	in := &instance{name: name, cmd: cmd, exited: make(chan struct{})}
	in.cmd.Stdout, in.cmd.Stderr = &in.stdout, &in.stderr
	started := make(chan error, 1)
	go in.run(started)
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		in.kill(t)
		if in.stderr.count("WARNING: DATA RACE") > 0 {
			t.Errorf("data race in %s:\n%s", name, in.stderr.tail(60))
		}
	})
	return in
}

func TestHelpOfTheRecipesHasExamples(t *testing.T) {
	t.Parallel()
	r := newRecipes(t)
	for _, name := range []string{"lock", "semaphore", "elect", "queue", "queue offer", "queue peek", "queue poll", "queue len"} {
		got := r.run(append(strings.Fields(name), "--help")...)
		if got.code != 0 || got.stderr != "" || !strings.Contains(got.stdout, "Examples:\n") || strings.Count(got.stdout, " "+name+" ") < 2 {
			t.Errorf("%s --help: exit code %d, %q, want examples in:\n%s", name, got.code, got.stderr, got.stdout)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	r := newRecipes(t)
	got := r.run("completion", "bash")
	check := exec.Command("bash", "-n")
	check.Stdin = strings.NewReader(got.stdout)
	if out, err := check.CombinedOutput(); err != nil || got.code != 0 || !strings.Contains(got.stdout, "idemctl") {
		t.Errorf("completion bash: exit code %d, %q; bash -n says %v, %s", got.code, got.stderr, err, out)
	}
	if got := r.run("__complete", "queue", "p"); got.code != 0 || !strings.Contains(got.stdout, "peek") || !strings.Contains(got.stdout, "poll") {
		t.Errorf("completion of \"queue p\" = %q, exit code %d, want peek and poll", got.stdout, got.code)
	}
}
