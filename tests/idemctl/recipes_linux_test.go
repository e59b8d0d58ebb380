package idemctl

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A command under a lock has the terminal: it reads from it, Ctrl-C is its own,
// and whoever had the terminal before has it again afterwards.
func TestLockLendsTheTerminal(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t))
	lock := r.Idemctl("lock", job, "--", "sh", "-c",
		`trap 'echo "stopped by $word"; exit 6' INT; echo asks; read -r word; echo "heard $word"; while :; do sleep 0.05; done`)
	var line []string
	for _, arg := range lock.Args {
		line = append(line, "'"+strings.ReplaceAll(arg, "'", `'\''`)+"'")
	}
	// script(1) of util-linux gives what it runs a terminal.
	cmd := exec.Command("script", "-qec", strings.Join(line, " ")+`; echo "code $?"; read -r word; echo "after that $word"`, "/dev/null")
	cmd.Env = lock.Env
	keys, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	press := func(s string) {
		if _, err := io.WriteString(keys, s); err != nil {
			t.Error(err)
		}
	}
	in := kit.StartProcess(t, "idemctl in a terminal", cmd)
	in.WaitOut(t, "asks")
	press("one\n")
	in.WaitOut(t, "heard one")
	press("\x03")
	in.WaitOut(t, "stopped by one")
	in.WaitOut(t, "code 6")
	press("two\n")
	in.WaitOut(t, "after that two")
	keys.Close()
	kit.WaitFor(t, "exit of "+in.Name, in.Exited)
}

func TestLockKilledTakesItsCommandAlong(t *testing.T) {
	t.Parallel()
	r := kit.ZooKeeperOnly(t, testserver.SharedZooKeeper(t)).WithShortSession()
	in := r.StartIdemctl("lock", job, "--", "sh", "-c", "echo pid $$ runs; exec sleep 600")
	var pid int
	if _, err := fmt.Sscanf(in.WaitOut(t, "runs"), "pid %d", &pid); err != nil {
		t.Fatal(err)
	}
	if err := notThere(pid); err == nil {
		t.Fatalf("the command, process %d, is not there", pid)
	}
	in.Kill(t) // waits for the end of its output, which the command has open
	kit.Eventually(t, "end of the command", func() error { return notThere(pid) })
	wantOutput(t, "the next one", r.RunIdemctl("lock", job, "--", "echo", "mine"), "mine\n")
}

// notThere returns nil if there is no such process, or it has ended and nobody
// has waited for it yet.
func notThere(pid int) error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil && !strings.Contains(string(stat), ") Z ") {
		return fmt.Errorf("process %d is running", pid)
	}
	return nil
}
