package recipe

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// trusted is a lease that is trusted until a moment, which can be put off.
type trusted struct {
	driver.Lease

	done chan struct{}

	mu    sync.Mutex
	until time.Time
	mute  bool // the servers do not answer
	end   *time.Timer
	err   error
}

func trustedFor(d time.Duration) *trusted {
	l := &trusted{done: make(chan struct{}), until: time.Now().Add(d)}
	l.end = time.AfterFunc(d, func() { l.lose(driver.ErrLeaseLost) })
	return l
}

func (l *trusted) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = err
		close(l.done)
	}
}

// renew puts the end off, or has the servers fall silent.
func (l *trusted) renew(d time.Duration, mute bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mute = mute
	if d > 0 {
		l.until = time.Now().Add(d)
		l.end.Reset(d)
	}
}

func (l *trusted) Done() <-chan struct{} { return l.done }

func (l *trusted) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func (l *trusted) Check(ctx context.Context) (time.Duration, error) {
	l.mu.Lock()
	mute, left, err := l.mute, time.Until(l.until), l.err
	l.mu.Unlock()
	if mute && err == nil {
		select {
		case <-ctx.Done():
			return 0, errors.Join(driver.ErrUnavailable, context.Cause(ctx))
		case <-l.done:
			return 0, l.Err()
		}
	}
	return left, err
}

// sent is a signal that a command got, and when.
type sent struct {
	sig os.Signal
	at  time.Duration
}

// command is a ward that ends when it is told to by one of some signals.
type command struct {
	began time.Time
	obeys []os.Signal
	gone  chan struct{}
	got   []sent
}

func commandThatObeys(sigs ...os.Signal) *command {
	return &command{began: time.Now(), obeys: sigs, gone: make(chan struct{})}
}

func (c *command) ended() <-chan struct{} { return c.gone }
func (c *command) kill()                  { c.signal(os.Kill) }

func (c *command) signal(sig os.Signal) {
	select {
	case <-c.gone:
		return
	default:
	}
	c.got = append(c.got, sent{sig, time.Since(c.began)})
	if slices.Contains(c.obeys, sig) {
		c.end()
	}
}

func (c *command) end() {
	select {
	case <-c.gone:
	default:
		close(c.gone)
	}
}

func TestSupervise(t *testing.T) {
	const (
		term  = syscall.SIGTERM
		kill  = syscall.SIGKILL
		short = 6 * time.Second  // of which the last second is for cleaning up
		long  = 60 * time.Second // of which the last 5 s are
	)
	tests := []struct {
		name  string
		trust time.Duration
		obeys []os.Signal
		do    func(l *trusted, c *command) // begins once the command runs
		lost  bool
		got   []sent
	}{
		{
			name: "a command that ends by itself gets nothing", trust: short,
			do: func(_ *trusted, c *command) { time.Sleep(time.Second); c.end() },
		},
		{
			name: "a lease that is renewed lasts", trust: short,
			do: func(l *trusted, c *command) {
				for range 20 {
					time.Sleep(short / 2)
					l.renew(short, false)
				}
				c.end()
			},
		},
		{
			name: "SIGTERM before the trust ends", trust: short, obeys: []os.Signal{term, kill},
			do:   func(l *trusted, _ *command) { l.renew(0, true) },
			lost: true, got: []sent{{term, short * 5 / 6}},
		},
		{
			name: "SIGKILL when it does", trust: short, obeys: []os.Signal{kill},
			do:   func(l *trusted, _ *command) { l.renew(0, true) },
			lost: true, got: []sent{{term, short * 5 / 6}, {kill, short}},
		},
		{
			name: "a long session leaves 5 s", trust: long, obeys: []os.Signal{kill},
			do:   func(l *trusted, _ *command) { l.renew(0, true) },
			lost: true, got: []sent{{term, long - killAfter}, {kill, long}},
		},
		{
			name: "no way back after SIGTERM", trust: short, obeys: []os.Signal{kill},
			do: func(l *trusted, _ *command) {
				l.renew(0, true)
				time.Sleep(short - time.Millisecond)
				l.renew(long, false)
			},
			lost: true, got: []sent{{term, short * 5 / 6}, {kill, short*5/6 + killAfter}},
		},
		{
			name: "both at once where it ends without notice", trust: short, obeys: []os.Signal{kill},
			do:   func(l *trusted, _ *command) { time.Sleep(time.Second); l.lose(driver.ErrLeaseLost) },
			lost: true, got: []sent{{term, time.Second}, {kill, time.Second}},
		},
		{
			name: "a success after SIGTERM is none", trust: short,
			do:   func(l *trusted, c *command) { l.renew(0, true); time.Sleep(short - time.Millisecond); c.end() },
			lost: true, got: []sent{{term, short * 5 / 6}},
		},
		{
			name: "servers that are silent at the end cost nothing", trust: short,
			do: func(l *trusted, c *command) { l.renew(0, true); time.Sleep(time.Second); c.end() },
		},
		{
			name: "the end of the lease counts, however late it is noticed", trust: short,
			do: func(l *trusted, c *command) {
				l.renew(0, false)
				l.lose(driver.ErrLeaseLost)
				c.end() // both are there to be seen
			},
			lost: true, got: nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, c := trustedFor(tt.trust), commandThatObeys(tt.obeys...)
				defer l.end.Stop()
				go tt.do(l, c)
				if tt.got == nil && tt.lost {
					synctest.Wait()
				}
				lost := supervise(l, tt.trust, c, nil)
				if tt.got == nil && tt.lost { // it may have been told, or not
					c.got = nil
				}
				if lost != tt.lost || !slices.Equal(c.got, tt.got) {
					t.Errorf("supervise() = %v, sent %v, want %v, %v", lost, c.got, tt.lost, tt.got)
				}
			})
		})
	}
}

func TestSupervisePassesSignalsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c := trustedFor(time.Hour), commandThatObeys(syscall.SIGTERM)
		defer l.end.Stop()
		signals := make(chan os.Signal)
		go func() {
			for _, sig := range []os.Signal{os.Interrupt, os.Interrupt, syscall.SIGHUP, syscall.SIGTERM} {
				signals <- sig
			}
		}()
		want := []sent{{os.Interrupt, 0}, {os.Interrupt, 0}, {syscall.SIGHUP, 0}, {syscall.SIGTERM, 0}}
		if lost := supervise(l, time.Hour, c, signals); lost || !slices.Equal(c.got, want) {
			t.Errorf("supervise() = %v, sent %v, want false, %v", lost, c.got, want)
		}
	})
}
