package idemctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

const (
	// stays is a command that says that it runs, and goes on until it is ended.
	stays = "echo runs; exec sleep 600"
	job   = "/jobs/nightly"
)

// holding starts a lock or a semaphore whose command stays, and returns when
// that runs.
func holding(s *kit.System, args ...string) *kit.Process {
	s.T.Helper()
	in := s.StartIdemctl(append(args, "--", "sh", "-c", stays)...)
	in.WaitOut(s.T, "runs")
	return in
}

func TestLockExitsAsItsCommandDoes(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("no program"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		args   []string
		code   int
		stderr string // part of the one line; "": none
	}{
		{"success", []string{"lock", job, "--", "true"}, 0, ""},
		{"failure", []string{"lock", job, "--", "sh", "-c", "exit 7"}, 7, ""},
		{"a code that idemctl has as well", []string{"lock", job, "--", "sh", "-c", "exit 75"}, 75, ""},
		{"flags of its own", []string{"lock", "--timeout", "30s", job, "--", "sh", "-c", "exit 4"}, 4, ""},
		{"killed", []string{"lock", job, "--", "sh", "-c", "kill -KILL $$"}, 128 + 9, ""},
		{"terminated", []string{"semaphore", "--permits", "2", "/jobs/imports", "--", "sh", "-c", "kill -TERM $$"}, 128 + 15, ""},
		{"not found", []string{"lock", job, "--", "no-such-command"}, 127, "idemctl: "},
		{"not executable", []string{"lock", job, "--", plain}, 126, "idemctl: "},
	} {
		got := r.RunIdemctl(tt.args...)
		lines := strings.Count(got.Stderr, "\n")
		if got.Code != tt.code || lines > 1 || (lines == 0) != (tt.stderr == "") || !strings.Contains(got.Stderr, tt.stderr) {
			t.Errorf("%s: exit code %d, %q, want %d, %q", tt.name, got.Code, got.Stderr, tt.code, tt.stderr)
		}
	}
	nobody := r.Idemctl("--zookeeper", "127.0.0.1:1", "lock", "--timeout", "1s", job, "--", "true")
	wantExitLine(t, "unreachable ensemble", kit.StartProcess(t, "idemctl with an unreachable ensemble", nobody).WaitExit(t), 1, "refused")
}

func TestLockGivesTheCommandFenceAndStandardInput(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	last := uint64(0)
	for range 3 {
		got := r.RunIdemctl("lock", job, "--", "sh", "-c", `echo "$IDEM_FENCE"; echo "says $IDEM_FENCE" >&2`)
		fence, err := strconv.ParseUint(strings.TrimSpace(got.Stdout), 10, 64)
		if err != nil || fence <= last || got.Stderr != fmt.Sprintf("says %d\n", fence) {
			t.Errorf("fence %q on standard output, %q on standard error, want more than %d on both", got.Stdout, got.Stderr, last)
		}
		last = fence
	}
	piped := r.Idemctl("lock", "--shared", job, "--", "cat")
	piped.Stdin = strings.NewReader("through\n")
	wantOutput(t, "cat under a lock", kit.StartProcess(t, "idemctl lock -- cat", piped).WaitExit(t), "through\n")
}

func TestLockExcludesUnlessShared(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	readers := []*kit.Process{holding(r, "lock", "--shared", job), holding(r, "lock", "--shared", "--timeout", "0s", job)}
	wantExitLine(t, "exclusive beside shared", r.RunIdemctl("lock", "--timeout", "300ms", job, "--", "true"), 75, job, "not acquired within 300ms")
	wantExitLine(t, "exclusive beside shared, at once", r.RunIdemctl("lock", "--timeout", "0s", job, "--", "true"), 75, job, "not acquired")
	wantOutput(t, "another path", r.RunIdemctl("lock", "--timeout", "0s", "/jobs/other", "--", "true"), "")

	writer := r.StartIdemctl("lock", job, "--", "sh", "-c", stays)
	for _, in := range readers {
		if code := in.Terminate(t); code != 128+15 {
			t.Errorf("terminated: exit code %d, want %d", code, 128+15)
		}
	}
	writer.WaitOut(t, "runs")
	wantExitLine(t, "shared beside exclusive", r.RunIdemctl("lock", "--shared", "--timeout", "300ms", job, "--", "true"), 75, job, "not acquired")
	waiter := r.StartIdemctl("lock", job, "--", "echo", "mine")
	waitForPlaces(r, job, 2)
	told := r.StartIdemctl("lock", job, "--", "echo", "never")
	if code := told.Terminate(t); code != 75 && code != -1 { // -1: before it had begun
		t.Errorf("terminated while it waits: exit code %d, want 75", code)
	}
	writer.Terminate(t)
	wantOutput(t, "the one that waited", waiter.WaitExit(t), "mine\n")
	if out := told.Stdout.All(); out != "" {
		t.Errorf("the one that was told to stop has run its command: %q", out)
	}
}

// A lock is held until everything has ended that its command has left running.
func TestLockOutlivesItsCommandWithTheChildren(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	in := r.StartIdemctl("lock", job, "--", "sh", "-c", `(read -r x < "$0"; echo child "$x") & echo command; exit 3`, fifo)
	in.WaitOut(t, "command")
	wantExitLine(t, "another one while the child goes on", r.RunIdemctl("lock", "--timeout", "0s", job, "--", "true"), 75, "not acquired")
	if err := os.WriteFile(fifo, []byte("ends\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := in.WaitExit(t); got.Code != 3 || !strings.HasSuffix(got.Stdout, "child ends\n") {
		t.Errorf("exit code %d, printed %q, want 3 and the child's end", got.Code, got.Stdout)
	}
	wantOutput(t, "the next one", r.RunIdemctl("lock", "--timeout", "0s", job, "--", "true"), "")
}

// A holder is cut off from ZooKeeper. Its command is told to end, and has ended
// before somebody else has the lock.
func TestLockLostEndsItsCommandInTime(t *testing.T) {
	for _, tt := range []struct{ name, onTerm string }{
		{"a command that ignores SIGTERM", "echo term"},
		{"a command that obeys", "echo term; exit 0"},
		{"a child that ignores SIGTERM", "echo term; exit 0' TERM; (trap '' TERM; while :; do echo $EPOCHREALTIME >> $0; sleep 0.02; done) & trap 'echo term; exit 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t)).WithShortSession()
			beats := filepath.Join(t.TempDir(), "beats")
			p := testserver.StartZooKeeperProxy(t, r.ZK[0])
			in := r.Through(p).StartIdemctl("lock", job, "--", "bash", "-c",
				"trap '"+tt.onTerm+"' TERM; echo runs; while :; do echo $EPOCHREALTIME >> $0; sleep 0.02; done", beats)
			in.WaitOut(t, "runs")
			next := r.StartIdemctl("lock", job, "--", "bash", "-c", "echo $EPOCHREALTIME")
			waitForPlaces(r, job, 2)
			p.BlackHole(testserver.Both)
			first, got := moment(t, strings.TrimSpace(next.WaitExit(t).Stdout)), in.WaitExit(t)
			text, err := os.ReadFile(beats)
			if err != nil {
				t.Fatal(err)
			}
			lines := string(text)
			whole := strings.Split(lines[:strings.LastIndexByte(lines, '\n')], "\n") // the last one may have been cut short
			last := moment(t, whole[len(whole)-1])
			if !last.Before(first) {
				t.Errorf("the command was alive %v after the next one had begun", last.Sub(first))
			} else {
				t.Logf("the last sign of life was %v before the next one began", first.Sub(last))
			}
			if n := in.Stdout.Count("term"); n != 1 {
				t.Errorf("%d SIGTERM, want 1", n)
			}
			wantExitLine(t, "the one cut off", got, 1, job, "lost before CMD ended")
		})
	}
}

// moment reads bash's $EPOCHREALTIME.
func moment(t *testing.T, s string) time.Time {
	t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.UnixMicro(int64(f * 1e6))
}

// A short outage does no harm.
func TestLockStandsAShortOutage(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	p := testserver.StartZooKeeperProxy(t, r.ZK[0])
	in := r.Through(p).StartIdemctl("lock", job, "--", "sh", "-c", stays)
	in.WaitOut(t, "runs")
	p.Cut()
	wantExitLine(t, "another one", r.RunIdemctl("lock", "--timeout", "0s", job, "--", "true"), 75, "not acquired")
	if code := in.Terminate(t); code != 128+15 {
		t.Errorf("exit code %d, %q, want %d", code, in.Stderr.All(), 128+15)
	}
}

func TestSemaphoreCounts(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	const imports = "/jobs/imports"
	one, two := holding(r, "semaphore", "--permits", "2", imports), holding(r, "semaphore", "--permits", "2", "--timeout", "0s", imports)
	wantExitLine(t, "a third", r.RunIdemctl("semaphore", "--permits", "2", "--timeout", "300ms", imports, "--", "true"), 75, imports, "not acquired within 300ms")
	wantExitLine(t, "a third, at once", r.RunIdemctl("semaphore", "--permits", "2", "--timeout", "0s", imports, "--", "true"), 75, imports, "not acquired")
	wantExitLine(t, "other permits", r.RunIdemctl("semaphore", "--permits", "3", imports, "--", "true"), 1, imports, " 2", " 3")
	waiter := r.StartIdemctl("semaphore", "--permits", "2", imports, "--", "sh", "-c", `echo "$IDEM_FENCE"`)
	if code := one.Terminate(t); code != 128+15 {
		t.Errorf("exit code %d, want %d", code, 128+15)
	}
	if got := waiter.WaitExit(t); got.Code != 0 || len(strings.TrimSpace(got.Stdout)) == 0 {
		t.Errorf("the one that waited: exit code %d, %q", got.Code, got.Stdout)
	}
	two.Terminate(t)
}

// A lock whose znode is deleted by hand is noticed, and its command killed.
func TestLockDeletedByHandEndsItsCommand(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	in := holding(r, "lock", job)
	conn := r.ZooKeeper()
	places := r.Children(conn, r.Chroot+job)
	if len(places) != 1 {
		t.Fatalf("places %q, want the holder's", places)
	}
	if err := conn.Delete(r.Chroot+job+"/"+places[0], -1); err != nil {
		t.Fatal(err)
	}
	wantExitLine(t, "the one whose lock was deleted", in.WaitExit(t), 1, job, "lost before CMD ended")
}
