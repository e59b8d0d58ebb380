package recipe

import (
	"context"
	"errors"
	"os"
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
