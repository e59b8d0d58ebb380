package kit

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Process is a program that a test runs: the sample service, idemctl, or a shell.
type Process struct {
	Name           string
	Cmd            *exec.Cmd
	Stdout, Stderr output
	Exited         chan struct{} // closed once the process was waited for
	Code           int           // exit code, once exited; -1 after a signal
}

// StartProcess starts a program and waits for nothing. The clean-up of the test
// kills it, and shows the end of its log if the test has failed.
func StartProcess(t testing.TB, name string, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Name: name, Cmd: cmd, Exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &p.Stdout, &p.Stderr, testserver.ChildAttr()
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.Kill(t)
		if n := p.Stderr.Count("WARNING: DATA RACE"); n > 0 {
			t.Errorf("%s has reported %d data races", name, n)
		}
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", name, p.Stderr.Tail(200))
		}
	})
	return p
}

// run owns the process from start to exit. The kernel's death signal is tied to
// the thread that forked, so run keeps that thread.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.Cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = p.Cmd.Wait()
	p.Code = p.Cmd.ProcessState.ExitCode()
	close(p.Exited)
}

// Running reports whether the process has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.Exited:
		return false
	default:
		return true
	}
}

// Ended is an error once the process has ended.
func (p *Process) Ended() error {
	if p.Running() {
		return nil
	}
	return fmt.Errorf("%s has ended with code %d", p.Name, p.Code)
}

// Signal sends a signal, and fails the test if it does not arrive.
func (p *Process) Signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := p.Cmd.Process.Signal(sig); err != nil && p.Running() {
		t.Errorf("signal %v to %s: %v", sig, p.Name, err)
	}
}

// Kill ends the process at once (SIGKILL), as a crash would, and waits for it.
func (p *Process) Kill(t testing.TB) {
	t.Helper()
	if p.Running() {
		p.Signal(t, syscall.SIGKILL)
		WaitFor(t, "exit of "+p.Name, p.Exited)
	}
}

// Terminate asks the process to end (SIGTERM), waits for it and returns its exit
// code.
func (p *Process) Terminate(t testing.TB) int {
	t.Helper()
	p.Signal(t, syscall.SIGTERM)
	return p.WaitExit(t).Code
}

// Pause suspends the process (SIGSTOP). All its threads stand still on return.
func (p *Process) Pause(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGSTOP)
	err := Poll(WaitLimit, func() error { return testserver.AllStopped(p.Cmd.Process.Pid) })
	if err != nil || !p.Running() {
		t.Errorf("pause %s: %v", p.Name, errors.Join(err, p.Ended()))
	}
}

// Resume lets a paused process go on (SIGCONT).
func (p *Process) Resume(t testing.TB) {
	t.Helper()
	p.Signal(t, syscall.SIGCONT)
}

// Result is the exit code and the whole output of a process.
type Result struct {
	Code           int
	Stdout, Stderr string
}

// WaitExit waits until the process ends by itself.
func (p *Process) WaitExit(t testing.TB) Result {
	t.Helper()
	WaitFor(t, "exit of "+p.Name, p.Exited)
	return Result{p.Code, p.Stdout.All(), p.Stderr.All()}
}

// WaitLog waits for a line on standard error that holds all parts, and returns
// it. The process may have printed the line before.
func (p *Process) WaitLog(t testing.TB, parts ...string) string {
	t.Helper()
	return p.waitLine(t, &p.Stderr, parts)
}

// WaitOut is WaitLog for standard output.
func (p *Process) WaitOut(t testing.TB, parts ...string) string {
	t.Helper()
	return p.waitLine(t, &p.Stdout, parts)
}

func (p *Process) waitLine(t testing.TB, from *output, parts []string) (line string) {
	t.Helper()
	Eventually(t, fmt.Sprintf("line %q of %s", parts, p.Name), func() error {
		ended := p.Ended()
		var ok bool
		if line, ok = from.Find(parts...); ok {
			return nil
		}
		if ended != nil {
			t.Fatalf("no line %q: %v:\n%s", parts, ended, p.Stderr.Tail(20))
		}
		return ErrNotYet
	})
	return line
}

// WantNoLog fails the test if a line on standard error holds all parts.
func (p *Process) WantNoLog(t testing.TB, parts ...string) {
	t.Helper()
	if line, ok := p.Stderr.Find(parts...); ok {
		t.Errorf("%s has logged %q", p.Name, line)
	}
}

// output collects what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// All returns what was printed so far.
func (o *output) All() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// Lines returns the complete lines that hold all parts.
func (o *output) Lines(parts ...string) (found []string) {
	for line := range strings.Lines(o.All()) {
		if whole, ok := strings.CutSuffix(line, "\n"); ok && HoldsAll(whole, parts) {
			found = append(found, whole)
		}
	}
	return found
}

// Find returns the first complete line that holds all parts.
func (o *output) Find(parts ...string) (string, bool) {
	if lines := o.Lines(parts...); len(lines) > 0 {
		return lines[0], true
	}
	return "", false
}

// Count is the number of Lines.
func (o *output) Count(parts ...string) int { return len(o.Lines(parts...)) }

// Tail returns the last n lines.
func (o *output) Tail(n int) string {
	lines := strings.SplitAfter(o.All(), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// HoldsAll reports whether a line has all parts.
func HoldsAll(line string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(line, p) {
			return false
		}
	}
	return true
}
