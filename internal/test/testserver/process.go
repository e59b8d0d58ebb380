package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
)

// errBind marks the end of a server because its port was taken.
var errBind = errors.New("port already in use")

// program is a command to run. Output is appended to the file log.
type program struct {
	name string // for messages
	path string
	args []string
	dir  string
	log  string
	attr *syscall.SysProcAttr // nil: ChildAttr
	env  []string             // nil: as this process has it
}

// process is one running child. Its fields are set before startProcess returns.
type process struct {
	cmd    *exec.Cmd
	exited chan struct{} // closed once the child has been waited for
}

// startProcess runs prog. The caller ends it with signal and waits on exited.
func startProcess(prog program) (*process, error) {
	log, err := os.OpenFile(prog.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("testserver: log of %s: %w", prog.name, err)
	}
	defer log.Close()
	cmd := exec.Command(prog.path, prog.args...)
	cmd.Dir, cmd.Env = prog.dir, prog.env
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr = prog.attr; prog.attr == nil {
		cmd.SysProcAttr = ChildAttr()
	}
	p := &process{cmd: cmd, exited: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("testserver: start %s: %w", prog.name, err)
	}
	return p, nil
}

// run owns the child from start to exit. The death signal is tied to the thread
// that forked, not to the process, so this goroutine keeps its thread as long
// as the child lives. Otherwise the Go runtime may end an idle thread, and the
// kernel would kill a healthy server.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := p.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	_ = p.cmd.Wait() // the exit status of a killed server says nothing
	forgetClock(p.pid())
	close(p.exited)
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// signal sends sig. A process that has ended already is no error.
func (p *process) signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// end sends sig and waits for the exit. SIGKILL follows if the process ignores sig
// for exitTimeout.
func (p *process) end(sig syscall.Signal) error {
	for _, s := range []syscall.Signal{sig, syscall.SIGKILL} {
		if err := p.signal(s); err != nil {
			return err
		}
		if s != syscall.SIGKILL {
			_ = p.signal(syscall.SIGCONT) // a stopped process handles nothing else
		}
		if poll(exitTimeout, p.exited, func() error { return errors.New("still running") }); !p.running() {
			return nil
		}
	}
	return fmt.Errorf("process %d survived SIGKILL for %v", p.pid(), exitTimeout)
}

// logTail returns the last lines of a server's log, for a failure message.
func logTail(file string, lines int) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(string(bytes.TrimSpace(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// fileLines returns the lines of a file.
func fileLines(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return strings.Split(string(data), "\n"), nil
}

// bindFailed reports whether the log says that a port was taken. Redis and the JVM
// use the same words.
func bindFailed(file string) bool {
	return strings.Contains(logTail(file, 30), "Address already in use")
}
