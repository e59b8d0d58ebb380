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

	"github.com/idemkeeper/idemkeeper/idem"
)

const (
	// killAfter is the most that a command has between SIGTERM and SIGKILL.
	killAfter = 5 * time.Second
	// lastLook bounds the question whether a lock was still held when its
	// command had ended.
	lastLook = 500 * time.Millisecond
)

// commandError ends idemctl as the command ended that it ran, or could not run.
type commandError struct {
	code int
	err  error // nil: the command has said itself what was to say
}

func (e commandError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e commandError) Unwrap() error { return e.err }

// ward is a command that runs under a lease, with the processes of its group.
type ward interface {
	signal(sig os.Signal)
	kill()
	ended() <-chan struct{} // closed when none of them is left
}

// supervise lets a command run until it has ended, and sees to it that it does
// before somebody else can have what the lease stands for. It reports whether
// the lease was lost before the end. left is for how long it could be trusted when
// the command began.
//
// [idem.Lease.Done] is closed at the last moment at which the lock is certainly
// not anybody else's: in the worst case the ensemble gives it away right then
// (see the type clock of lock/zookeeper, whose margin is used up by then but for
// what clocks may differ in speed). So that is when SIGKILL goes out, and SIGTERM
// has to go out before, while the lease is still trusted but nothing has renewed
// it for so long that it is about to end: by a sixth of the trust, or 5 s where
// that is less. A session of 10 s at a tick of 2 s is trusted for 6.5 s and
// leaves 1.1 s to clean up in; one of 60 s leaves 5 s.
//
// Where a lease ends without notice, because its znode was deleted by hand, its
// session was closed on the server, or this process was paused, somebody else may
// have the lock already: SIGKILL follows SIGTERM at once.
func supervise(lease idem.Lease, left time.Duration, w ward, signals <-chan os.Signal) (lost bool) {
	looks := make(chan time.Duration)
	defer look(lease, looks)()

	trust := left // as much as it ever is, soon
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

// held says whether a lease was good until now: a process that was paused may
// not have heard yet that it was not. Where the servers do not answer at once,
// what is known has to do.
func held(lease idem.Lease) bool {
	ctx, cancel := context.WithTimeout(context.Background(), lastLook)
	defer cancel()
	_, err := lease.Check(ctx)
	return lease.Err() == nil && !errors.Is(err, idem.ErrLeaseLost)
}

// look tells how long a lease can be trusted if nothing renews it, again and
// again, until it is stopped. A lock whose znode was deleted by hand is lost by
// it. looks may be nil.
func look(lease idem.Lease, looks chan<- time.Duration) (stop func()) {
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

// heard subscribes to signals, but for those that this process was started to
// ignore: a command under nohup stays one.
func heard(sigs ...os.Signal) (c chan os.Signal, stop func()) {
	c = make(chan os.Signal, 8)
	for _, sig := range sigs {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
	return c, func() { signal.Stop(c) }
}

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
