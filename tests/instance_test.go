package tests

import (
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"runtime"
	"syscall"
	"testing"
)

// instance is a running process of the sample payment service.
type instance struct {
	name   string
	addr   string // of the HTTP server
	rpc    string // of the gRPC server
	cmd    *exec.Cmd
	stdout logbook
	stderr logbook
	exited chan struct{} // closed once it was waited for
	code   int           // exit code, once exited; -1 where a signal ended it
}

var readyLine = regexp.MustCompile(`^ready http=(\S+) grpc=(\S+)$`)

// startInstance runs the sample with these flags and returns once it says that
// it is ready. It is killed in the test's clean-up, which shows the end of its
// log where the test has failed.
func startInstance(t testing.TB, name string, flags ...string) *instance {
	t.Helper()
	in := spawnInstance(t, name, flags...)
	eventually(t, "ready line of "+name, func() error {
		if !in.running() {
			t.Fatalf("%s has ended with code %d before it was ready:\n%s", name, in.code, in.stderr.tail(20))
		}
		line, ok := in.stdout.find("ready ")
		if !ok {
			return errNotYet
		}
		m := readyLine.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("%s printed %q, want %v", name, line, readyLine)
		}
		in.addr, in.rpc = m[1], m[2]
		return nil
	})
	return in
}

// spawnInstance starts the process and does not wait for anything.
func spawnInstance(t testing.TB, name string, flags ...string) *instance {
	t.Helper()
	args := append([]string{"--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0", "--log-level", "debug"}, flags...)
	in := &instance{name: name, cmd: exec.Command(binary(t, "./example-payments"), args...), exited: make(chan struct{})}
	in.cmd.Stdout, in.cmd.Stderr = &in.stdout, &in.stderr
	in.cmd.SysProcAttr = childAttr()
	started := make(chan error, 1)
	go in.run(started)
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		in.kill(t)
		if n := in.stderr.count("WARNING: DATA RACE"); n > 0 {
			t.Errorf("%s has reported %d data races", name, n)
		}
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", name, in.stderr.tail(200))
		}
	})
	return in
}

// run owns the process from start to exit. The kernel's death signal is tied
// to the thread that forked, so that thread is kept.
func (in *instance) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := in.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = in.cmd.Wait()
	in.code = in.cmd.ProcessState.ExitCode()
	close(in.exited)
}

func (in *instance) running() bool {
	select {
	case <-in.exited:
		return false
	default:
		return true
	}
}

func (in *instance) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := in.cmd.Process.Signal(sig); err != nil && in.running() {
		t.Errorf("signal %v to %s: %v", sig, in.name, err)
	}
}

// kill ends the process at once (SIGKILL), as a crash would, and waits for it.
func (in *instance) kill(t testing.TB) {
	t.Helper()
	if in.running() {
		in.signal(t, syscall.SIGKILL)
		happens(t, "exit of "+in.name, in.exited)
	}
}

// terminate asks the process to end (SIGTERM), waits for it and returns its
// exit code.
func (in *instance) terminate(t testing.TB) int {
	t.Helper()
	in.signal(t, syscall.SIGTERM)
	happens(t, "exit of "+in.name, in.exited)
	return in.code
}

// pause suspends the process (SIGSTOP): all its threads stand still on return.
func (in *instance) pause(t testing.TB) {
	t.Helper()
	in.signal(t, syscall.SIGSTOP)
	err := poll(patience, func() error { return allStopped(in.cmd.Process.Pid) })
	if err != nil || !in.running() {
		t.Errorf("pause %s: %v", in.name, errors.Join(err, in.ended()))
	}
}

// resume lets a paused process go on (SIGCONT).
func (in *instance) resume(t testing.TB) {
	t.Helper()
	in.signal(t, syscall.SIGCONT)
}

func (in *instance) ended() error {
	if in.running() {
		return nil
	}
	return fmt.Errorf("%s has ended with code %d", in.name, in.code)
}
