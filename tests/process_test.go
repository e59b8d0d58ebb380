package tests

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

// process is a program that a test runs: the sample service, idemctl, or a shell.
type process struct {
	name           string
	cmd            *exec.Cmd
	stdout, stderr output
	exited         chan struct{} // closed once the process was waited for
	code           int           // exit code, once exited; -1 after a signal
}

// startProcess starts a program and waits for nothing. The clean-up of the test
// kills it, and shows the end of its log if the test has failed.
func startProcess(t testing.TB, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{name: name, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = &p.stdout, &p.stderr, testserver.ChildAttr()
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		p.kill(t)
		if n := p.stderr.count("WARNING: DATA RACE"); n > 0 {
			t.Errorf("%s has reported %d data races", name, n)
		}
		if t.Failed() {
			t.Logf("end of the log of %s:\n%s", name, p.stderr.tail(200))
		}
	})
	return p
}

// run owns the process from start to exit. The kernel's death signal is tied to
// the thread that forked, so run keeps that thread.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = p.cmd.Wait()
	p.code = p.cmd.ProcessState.ExitCode()
	close(p.exited)
}

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// ended is an error once the process has ended.
func (p *process) ended() error {
	if p.running() {
		return nil
	}
	return fmt.Errorf("%s has ended with code %d", p.name, p.code)
}

func (p *process) signal(t testing.TB, sig syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && p.running() {
		t.Errorf("signal %v to %s: %v", sig, p.name, err)
	}
}

// kill ends the process at once (SIGKILL), as a crash would, and waits for it.
func (p *process) kill(t testing.TB) {
	t.Helper()
	if p.running() {
		p.signal(t, syscall.SIGKILL)
		waitFor(t, "exit of "+p.name, p.exited)
	}
}

// terminate asks the process to end (SIGTERM), waits for it and returns its exit
// code.
func (p *process) terminate(t testing.TB) int {
	t.Helper()
	p.signal(t, syscall.SIGTERM)
	return p.waitExit(t).code
}

// pause suspends the process (SIGSTOP). All its threads stand still on return.
func (p *process) pause(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	err := poll(waitLimit, func() error { return testserver.AllStopped(p.cmd.Process.Pid) })
	if err != nil || !p.running() {
		t.Errorf("pause %s: %v", p.name, errors.Join(err, p.ended()))
	}
}

// resume lets a paused process go on (SIGCONT).
func (p *process) resume(t testing.TB) {
	t.Helper()
	p.signal(t, syscall.SIGCONT)
}

// result is the exit code and the whole output of a process.
type result struct {
	code           int
	stdout, stderr string
}

func (p *process) waitExit(t testing.TB) result {
	t.Helper()
	waitFor(t, "exit of "+p.name, p.exited)
	return result{p.code, p.stdout.all(), p.stderr.all()}
}

// waitLog waits for a line on standard error that holds all parts, and returns
// it. The process may have printed the line before.
func (p *process) waitLog(t testing.TB, parts ...string) string {
	t.Helper()
	return p.waitLine(t, &p.stderr, parts)
}

// waitOut is waitLog for standard output.
func (p *process) waitOut(t testing.TB, parts ...string) string {
	t.Helper()
	return p.waitLine(t, &p.stdout, parts)
}

func (p *process) waitLine(t testing.TB, from *output, parts []string) (line string) {
	t.Helper()
	eventually(t, fmt.Sprintf("line %q of %s", parts, p.name), func() error {
		ended := p.ended()
		var ok bool
		if line, ok = from.find(parts...); ok {
			return nil
		}
		if ended != nil {
			t.Fatalf("no line %q: %v:\n%s", parts, ended, p.stderr.tail(20))
		}
		return errNotYet
	})
	return line
}

// wantNoLog fails the test if a line on standard error holds all parts.
func (p *process) wantNoLog(t testing.TB, parts ...string) {
	t.Helper()
	if line, ok := p.stderr.find(parts...); ok {
		t.Errorf("%s has logged %q", p.name, line)
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

func (o *output) all() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// lines returns the complete lines that hold all parts.
func (o *output) lines(parts ...string) (found []string) {
	for line := range strings.Lines(o.all()) {
		if whole, ok := strings.CutSuffix(line, "\n"); ok && holdsAll(whole, parts) {
			found = append(found, whole)
		}
	}
	return found
}

// find returns the first complete line that holds all parts.
func (o *output) find(parts ...string) (string, bool) {
	if lines := o.lines(parts...); len(lines) > 0 {
		return lines[0], true
	}
	return "", false
}

func (o *output) count(parts ...string) int { return len(o.lines(parts...)) }

// tail returns the last n lines.
func (o *output) tail(n int) string {
	lines := strings.SplitAfter(o.all(), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

func holdsAll(line string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(line, p) {
			return false
		}
	}
	return true
}
