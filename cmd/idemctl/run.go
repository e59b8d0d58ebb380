package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
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
