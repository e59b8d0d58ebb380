package idemctl

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// tellsSignals, set in the environment, makes the test binary a program that
// prints what it is sent, and exits with 5 when that is SIGTERM. A shell will not
// do: bash forgets a signal that comes while it starts a command or runs a trap.
const tellsSignals = "IDEM_TEST_TELLS_SIGNALS"

// tellSignals is that program.
func tellSignals() int {
	names := map[os.Signal]string{syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGUSR1: "USR1", syscall.SIGTERM: "TERM"}
	c := make(chan os.Signal, 8)
	for sig := range names {
		signal.Notify(c, sig)
	}
	fmt.Fprintln(os.Stdout, "runs")
	for sig := range c {
		fmt.Fprintln(os.Stdout, "got "+names[sig])
		if sig == syscall.SIGTERM {
			break
		}
	}
	return 5
}

func TestLockPassesSignalsOn(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Under nohup, idemctl is to ignore SIGHUP as this process does, unless this
	// process hears it.
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	cmd := r.Idemctl("lock", job, "--", self)
	cmd.Env = append(cmd.Env, tellsSignals+"=1")
	in := kit.StartProcess(t, "idemctl lock -- a program that tells its signals", cmd)
	in.WaitOut(t, "runs")
	for _, s := range []struct {
		name string
		sig  syscall.Signal
	}{{"INT", syscall.SIGINT}, {"HUP", syscall.SIGHUP}, {"USR1", syscall.SIGUSR1}, {"INT", syscall.SIGINT}} {
		before := in.Stdout.Count("got " + s.name)
		in.Signal(t, s.sig)
		kit.Eventually(t, "signal "+s.name, func() error {
			if in.Stdout.Count("got "+s.name) == before {
				return kit.ErrNotYet
			}
			return nil
		})
	}
	says75 := r.RunIdemctl("lock", "--timeout", "0s", job, "--", "true")
	wantExitLine(t, "another one while the command goes on", says75, 75, "not acquired")
	if code := in.Terminate(t); code != 5 || in.Stdout.Count("got TERM") != 1 {
		t.Errorf("exit code %d, printed %q, want 5 after one SIGTERM", code, in.Stdout.All())
	}
	wantOutput(t, "the next one", r.RunIdemctl("lock", "--timeout", "0s", job, "--", "true"), "")
}
