package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Exit codes of a command that did not run, as shells have them.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal that ended it
)

// process is a running command, which leads a process group of its own. The
// group is what is signalled, and what has to be gone before the lock is given
// back: a shell's children work under its lock, too. (So does flock(1), whose
// lock goes with the last process that has inherited it.) A process that leaves
// the group, as daemons do, is on its own.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{}
}

// findCommand looks for a command as a shell does.
func findCommand(name string) (string, error) {
	file, err := exec.LookPath(name)
	return file, notStarted(err)
}

func notStarted(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return commandError{exitNotFound, err}
	}
	return commandError{exitNotExecutable, err}
}

// secretFlags can have passwords in their environment variables, which are not a
// command's business.
var secretFlags = []string{"REDIS", "DATABASE", "RESPONSE_KEYS", "ZOOKEEPER_AUTH"}

// withoutSecrets leaves idemctl's own out of an environment.
func withoutSecrets(env []string) []string {
	return slices.DeleteFunc(env, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		short, found := strings.CutPrefix(strings.ToUpper(name), envPrefix) // Windows does not care for case
		return found && slices.Contains(secretFlags, short)
	})
}

// startProcess starts a command with a fencing token in its environment.
func (a *app) startProcess(file string, argv []string, fence idem.Fence) (*process, error) {
	cmd := &exec.Cmd{
		Path: file, Args: argv, Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
		Env: append(withoutSecrets(os.Environ()), "IDEM_FENCE="+strconv.FormatUint(fence.Token, 10)),
	}
	p := &process{cmd, make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	return p, notStarted(<-started)
}

// run owns the process from start to end. The kernel's death signal is tied to
// the thread that forked, so that thread is kept.
func (p *process) run(started chan<- error) {
	defer close(p.gone)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	restore := groupOfItsOwn(p.cmd)
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // what it came to is in the state
	}
	restore()
	for pause := time.Millisecond; err == nil && groupLives(p.cmd.Process.Pid); pause = min(2*pause, 100*time.Millisecond) {
		time.Sleep(pause)
	}
}

func (p *process) ended() <-chan struct{} { return p.gone }
func (p *process) signal(sig os.Signal)   { signalGroup(p.cmd.Process, sig) }
func (p *process) kill()                  { signalGroup(p.cmd.Process, os.Kill) }
