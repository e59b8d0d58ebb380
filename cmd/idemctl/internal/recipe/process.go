package recipe

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Heard subscribes to signals, except those that this process was started to ignore.
// So a command under nohup goes on ignoring SIGHUP.
func Heard(sigs ...os.Signal) (c chan os.Signal, stop func()) {
	c = make(chan os.Signal, 8)
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	return c, func() { signal.Stop(c) }
}

// Exit codes of a command that did not run, the same as a shell's.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // plus the signal that ended it
)

// process is a running command and the leader of a process group. Signals go to the
// group, and the lock is given back when the whole group has ended, because a shell's
// children work under its lock too. (The lock of flock(1) also lasts as long as the
// last process that inherited it.) A process that leaves the group, like a daemon, is
// not waited for.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{}
}

// findCommand looks for a command like a shell.
func findCommand(name string) (string, error) {
	file, err := exec.LookPath(name)
	return file, notStarted(err)
}

func notStarted(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return cli.CommandError{Code: exitNotFound, Err: err}
	}
	return cli.CommandError{Code: exitNotExecutable, Err: err}
}

// withoutSecrets removes the variables of [servers.Secrets] from an environment.
func withoutSecrets(env []string) []string {
	return slices.DeleteFunc(env, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		short, found := strings.CutPrefix(strings.ToUpper(name), servers.EnvPrefix) // Windows ignores case
		return found && slices.Contains(servers.Secrets(), short)
	})
}

// startProcess starts a command with a fencing token in its environment.
func startProcess(std *cli.Streams, file string, argv []string, fence driver.Fence) (*process, error) {
	cmd := &exec.Cmd{
		Path: file, Args: argv, Stdin: std.In, Stdout: std.Out, Stderr: std.Err,
		Env: append(withoutSecrets(os.Environ()), "IDEM_FENCE="+strconv.FormatUint(fence.Token, 10)),
	}
	p := &process{cmd, make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	return p, notStarted(<-started)
}

// run starts the process and waits for its group. The kernel ties the death signal to
// the thread that forked, so run keeps its thread.
func (p *process) run(started chan<- error) {
	defer close(p.gone)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	restore := groupOfItsOwn(p.cmd)
	err := p.cmd.Start()
	started <- err
	if err == nil {
		_ = p.cmd.Wait() // the state has the exit code
	}
	restore()
	for pause := time.Millisecond; err == nil && groupLives(p.cmd.Process.Pid); pause = min(2*pause, 100*time.Millisecond) {
		time.Sleep(pause)
	}
}

func (p *process) ended() <-chan struct{} { return p.gone }
func (p *process) signal(sig os.Signal)   { signalGroup(p.cmd.Process, sig) }
func (p *process) kill()                  { signalGroup(p.cmd.Process, os.Kill) }
