package testserver

import (
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
)

// instance is a server that can be broken and started again on the same ports
// and data directory. Its methods are safe for concurrent use and may be
// called from any goroutine. Failures are reported with tb.Errorf.
type instance struct {
	prog  program
	ready func(pid int) error // nil once the server answers as this process

	hardware hardware // set before the first spawn

	mu     sync.Mutex
	tb     testing.TB // nil for a shared server, whose methods no test can reach
	proc   *process   // nil before the first spawn
	paused bool
}

// spawn starts the process without waiting for it to answer.
func (i *instance) spawn() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.proc != nil && i.proc.running() {
		return fmt.Errorf("testserver: %s is already running", i.prog.name)
	}
	proc, err := startProcess(i.prog)
	if err != nil {
		return err
	}
	i.proc, i.paused = proc, false
	return nil
}

// await waits until the server answers. The error holds the end of its log.
func (i *instance) await() error {
	proc := i.current()
	err := poll(StartTimeout, proc.exited, func() error { return i.ready(proc.pid()) })
	if err == nil {
		return nil
	}
	if errors.Is(err, errGone) && bindFailed(i.prog.log) {
		err = fmt.Errorf("%w: %w", errBind, err)
	}
	return fmt.Errorf("testserver: %s does not answer: %w\n%s", i.prog.name, err, logTail(i.prog.log, 30))
}

// start spawns and waits. After a failure no process is left.
func (i *instance) start() error {
	if err := i.spawn(); err != nil {
		return err
	}
	if err := i.await(); err != nil {
		return errors.Join(err, i.end(syscall.SIGKILL))
	}
	return nil
}

func (i *instance) end(sig syscall.Signal) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.paused = false
	if i.proc == nil || !i.proc.running() {
		return nil
	}
	if err := i.proc.end(sig); err != nil {
		return fmt.Errorf("testserver: end %s: %w", i.prog.name, err)
	}
	return nil
}

// own hands the instance to a test: it is killed in the test's clean-up, and
// the end of its log is shown if the test has failed.
func (i *instance) own(tb testing.TB) {
	i.mu.Lock()
	i.tb = tb
	i.mu.Unlock()
	tb.Cleanup(func() {
		i.check(i.end(syscall.SIGKILL))
		if tb.Failed() {
			tb.Logf("last lines of %s:\n%s", i.prog.name, logTail(i.prog.log, 40))
		}
	})
}

func (i *instance) check(err error) {
	if err != nil {
		i.tb.Helper()
		i.tb.Errorf("%v", err)
	}
}

// Stop ends the server gracefully (SIGTERM) and waits for its exit. It does
// nothing if the server is down.
func (i *instance) Stop() {
	i.tb.Helper()
	i.check(i.end(syscall.SIGTERM))
}

// Kill ends the server at once (SIGKILL), as a crash would, and waits for its
// exit. It does nothing if the server is down.
func (i *instance) Kill() {
	i.tb.Helper()
	i.check(i.end(syscall.SIGKILL))
}

// Pause suspends the server (SIGSTOP): its connections stay open and its port
// still accepts, but nothing answers. All its threads stand still on return.
func (i *instance) Pause() {
	i.tb.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.proc == nil || !i.proc.running() {
		i.tb.Errorf("testserver: Pause: %s is not running", i.prog.name)
		return
	}
	i.paused = true
	i.check(i.proc.signal(syscall.SIGSTOP))
	pid := i.proc.pid()
	i.check(poll(exitTimeout, i.proc.exited, func() error { return AllStopped(pid) }))
}

// Resume lets a paused server go on (SIGCONT).
func (i *instance) Resume() {
	i.tb.Helper()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.paused = false
	if i.proc != nil {
		i.check(i.proc.signal(syscall.SIGCONT))
	}
}

// Restart stops the server if it runs, starts it again on the same ports and
// data directory, and returns once it answers.
func (i *instance) Restart() {
	i.tb.Helper()
	i.check(i.end(syscall.SIGTERM))
	i.check(i.start())
}

// PID returns the process ID of the last start.
func (i *instance) PID() int { return i.current().pid() }

// current is the process of the last start.
func (i *instance) current() *process {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.proc
}

// answering reports whether the process is up and not paused.
func (i *instance) answering() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.proc != nil && i.proc.running() && !i.paused
}
