package recipes

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// What RunAsLeader returns tells whether the office was lost, and what the function said.
func TestRunAsLeaderTellsOfLossAndError(t *testing.T) {
	t.Parallel()
	own := errors.New("own")
	for name, tt := range map[string]struct {
		lost bool
		err  error
	}{
		"well":           {false, nil},
		"failed":         {false, own},
		"lost, and well": {true, nil},
		"lost, failed":   {true, own},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			got := MustNewElection(r.Client, "/e", "me").RunAsLeader(bounded(t), func(ctx context.Context, _ driver.Fence) error {
				if tt.lost {
					killSession(t, r.Client, r.Proxy)
					<-ctx.Done()
				}
				return tt.err
			})
			if !tt.lost && got != tt.err { //nolint:errorlint // it is the function's own error, and nothing else
				t.Errorf("RunAsLeader() = %v, want %v itself", got, tt.err)
			}
			if tt.lost && (!errors.Is(got, driver.ErrLeaseLost) || tt.err != nil && !errors.Is(got, tt.err)) {
				t.Errorf("RunAsLeader() = %v, want %v and %v", got, driver.ErrLeaseLost, tt.err)
			}
			if got != nil && strings.Contains(got.Error(), "nil") {
				t.Errorf("RunAsLeader() = %v, which names an error that there was not", got)
			}
			if l, err := MustNewElection(r.Other, "/e", "").Leader(bounded(t)); !tt.lost && !errors.Is(err, ErrNoLeader) {
				t.Errorf("Leader() after the term = %+v, %v, want %v", l, err, ErrNoLeader)
			}
		})
	}
}

// ownContext is a context of the application, to which package context has to start a goroutine.
type ownContext struct {
	context.Context //nolint:containedctx // it is one
	done            chan struct{}
}

func (c ownContext) Done() <-chan struct{} { return c.done }

// After the lease, its contexts hold on to nothing. TestMain looks for the goroutine.
func TestContextOfALeaseLeavesNoGoroutine(t *testing.T) {
	t.Parallel()
	c := open(t, sharedConfig(t))
	l, err := MustNewMutex(c, "/m").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx := l.Context(ownContext{context.Background(), make(chan struct{})})
	releaseAll(t, []*Lease{l})
	await(t, "context", ctx.Done())
}

// A lease keeps nothing of a context that ended before it did.
func TestLeaseForgetsContextsThatEnded(t *testing.T) {
	t.Parallel()
	c := open(t, sharedConfig(t))
	l, err := MustNewMutex(c, "/m").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	var collected atomic.Bool
	func() {
		type key struct{}
		own := new([64]byte)
		runtime.AddCleanup(own, func(to *atomic.Bool) { to.Store(true) }, &collected)
		parent, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, own))
		ctx := l.Context(parent)
		cancel()
		await(t, "context", ctx.Done())
	}()
	until(t, "the context to be collected", func() bool {
		runtime.GC()
		return collected.Load()
	})
	releaseAll(t, []*Lease{l})
}

// An observer asks the servers after a change, and not again and again.
func TestObserverAsksOnlyAfterAChange(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	counter := r.Proxy.Count(r.Config.Chroot + "/e")
	ch := MustNewElection(r.Client, "/e", "").Observe(bounded(t))
	quiet := func(what string) {
		t.Helper()
		before := counter.Seen().Total()
		for range 50 { // round trips over the same connection
			if err := r.Client.Locker().Ping(bounded(t)); err != nil {
				t.Fatal(err)
			}
		}
		if n := counter.Seen().Total() - before; n > 10 {
			t.Errorf("%s: the observer sent %d requests in 50 round trips, want hardly any", what, n)
		}
	}
	awaitLeader(t, ch, "")
	quiet("without a parent")
	l := campaign(t, MustNewElection(r.Other, "/e", "one"))
	if p := awaitLeader(t, ch, "one"); !p.Holds || p.Role != "" {
		t.Errorf("leader = %+v, want that it holds the office, without a role", p)
	}
	quiet("with a leader")
	resign(t, l)
}

func TestStateNames(t *testing.T) {
	t.Parallel()
	for s, want := range map[State]string{
		0: "State(0)", Candidate: "candidate", Acquired: "acquired", Released: "released", Lost: "lost", Lost + 1: "State(5)",
	} {
		if got := s.String(); got != want {
			t.Errorf("State(%d).String() = %q, want %q", uint8(s), got, want)
		}
	}
}
