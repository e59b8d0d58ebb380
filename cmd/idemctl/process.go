package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

const (
	// killAfter is the longest time between SIGTERM and SIGKILL.
	killAfter = 5 * time.Second
	// lastLook bounds the check, after the command has ended, that the lock was
	// still held.
	lastLook = 500 * time.Millisecond
)

// commandError makes idemctl exit as its command did.
type commandError struct {
	code int
	err  error // why the command could not run, nil if it ran
}

func (e commandError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e commandError) Unwrap() error { return e.err }

// ward is a command under a lease, with the processes of its group.
type ward interface {
	signal(sig os.Signal)
	kill()
	ended() <-chan struct{} // closed when no process of the group is left
}

// supervise waits for a command to end, and ends it before another holder can get
// the lock. It reports whether the lease was lost before the end. left is how long
// the lease could be trusted when the command began.
//
// [driver.Lease.Done] is closed at the last moment at which the lock certainly has no
// other holder. In the worst case the ensemble gives it away right then. The margin
// of lock/zookeeper's lease clock is used up, except for the difference in speed of
// the clocks. So SIGKILL goes out at that moment. SIGTERM goes out earlier, while
// the lease is still trusted but has not been renewed for long. The notice is a sixth
// of the trust, or 5 s if that is less. A session of 10 s at a tick of 2 s is trusted
// for 6.5 s and gives the command 1.1 s to clean up. One of 60 s gives it 5 s.
//
// A lease can end without notice, because its znode was deleted by hand, its session
// was closed on the server, or this process was paused. Then another holder may have
// the lock already, and SIGKILL follows SIGTERM at once.
func supervise(lease driver.Lease, left time.Duration, w ward, signals <-chan os.Signal) (lost bool) {
	looks := make(chan time.Duration)
	defer look(lease, looks)()

	trust := left // the greatest seen
	notice := func() time.Duration { return left - min(trust/6, killAfter) }
	term, kill := time.NewTimer(notice()), time.NewTimer(killAfter)
	kill.Stop()
	for done := lease.Done(); ; {
		select {
		case <-w.ended():
			return lost || !held(lease)
		case sig := <-signals:
			w.signal(sig)
		case left = <-looks:
			trust = max(trust, left)
			if !lost {
				term.Reset(notice())
			}
		case <-term.C:
			lost = true
			w.signal(syscall.SIGTERM)
			kill.Reset(killAfter)
		case <-kill.C:
			w.kill()
		case <-done:
			done = nil
			if !lost {
				lost = true
				w.signal(syscall.SIGTERM)
			}
			w.kill()
		}
	}
}

// held reports whether the lease is good until now. A paused process may not know yet
// that it was lost, so held asks the servers. If they do not answer at once, the
// lease clock decides.
func held(lease driver.Lease) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lastLook)
	defer cancel()
	_, err := lease.Check(ctx)
	return lease.Err() == nil && !errors.Is(err, driver.ErrLeaseLost)
}

// look checks a lease again and again until stop is called, and sends to looks how
// long the lease can be trusted without a renewal. A check notices that the lock's
// znode was deleted by hand. looks may be nil.
func look(lease driver.Lease, looks chan<- time.Duration) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		pause := time.Second
		for {
			d, err := lease.Check(ctx)
			if err == nil {
				pause = min(max(d/16, 50*time.Millisecond), time.Second)
			}
			if err == nil && looks != nil {
				select {
				case looks <- d:
				case <-ctx.Done():
				}
			}
			select {
			case <-time.After(pause):
			case <-lease.Done():
				return
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// heard subscribes to signals, except those that this process was started to ignore.
// So a command under nohup goes on ignoring SIGHUP.
func heard(sigs ...os.Signal) (c chan os.Signal, stop func()) {
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
		return commandError{exitNotFound, err}
	}
	return commandError{exitNotExecutable, err}
}

// secretFlags may have passwords in their environment variables.
var secretFlags = []string{"REDIS", "DATABASE", "RESPONSE_KEYS", "ZOOKEEPER_AUTH"}

// withoutSecrets removes the variables of secretFlags from an environment.
func withoutSecrets(env []string) []string {
	return slices.DeleteFunc(env, func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		short, found := strings.CutPrefix(strings.ToUpper(name), envPrefix) // Windows ignores case
		return found && slices.Contains(secretFlags, short)
	})
}

// startProcess starts a command with a fencing token in its environment.
func (a *app) startProcess(file string, argv []string, fence driver.Fence) (*process, error) {
	cmd := &exec.Cmd{
		Path: file, Args: argv, Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
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
