package recipes

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

func campaign(t testing.TB, e *Election) *Lease {
	t.Helper()
	l, err := e.Campaign(bounded(t))
	if err != nil {
		t.Fatalf("Campaign() = %v", err)
	}
	return l
}

// Candidates of several clients lead one after the other, in order, and each
// context has ended before the next begins.
func TestElectionPassesOn(t *testing.T) {
	t.Parallel()
	const candidates, terms = 4, 3
	var leaders atomic.Int64
	var last atomic.Uint64
	var wg sync.WaitGroup
	for _, c := range crowd(t, 2) {
		for range candidates {
			e := MustNewElection(c, "/e", "someone")
			wg.Go(func() {
				for range terms {
					err := e.RunAsLeader(bounded(t), func(ctx context.Context, fence driver.Fence) error {
						if leaders.Add(1) != 1 || ctx.Err() != nil {
							t.Error("two leaders")
						}
						if last.Swap(fence.Token) >= fence.Token {
							t.Errorf("fence %v after a greater one", fence)
						}
						leaders.Add(-1)
						return nil
					})
					if err != nil {
						t.Errorf("RunAsLeader() = %v", err)
					}
				}
			})
		}
	}
	wg.Wait()
}

func TestElectionRunAsLeader(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[Event]
	e := MustNewElection(r.Client, "/e", "me", WithListener(told.Take))
	free := func(state State) {
		t.Helper()
		campaign(t, MustNewElection(r.Other, "/e", "other")).ReleaseInBackground()
		evs := told.Events()
		if last := evs[len(evs)-1]; last.State != state {
			t.Errorf("the last event is %v, want %v", last.State, state)
		}
	}
	mine := errors.New("mine")
	var cause func() error
	err := e.RunAsLeader(bounded(t), func(ctx context.Context, _ driver.Fence) error {
		cause = func() error { return context.Cause(ctx) }
		return mine
	})
	if !errors.Is(err, mine) || errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("RunAsLeader() = %v, want %v", err, mine)
	}
	if !errors.Is(cause(), context.Canceled) {
		t.Errorf("cause %v after the term, want %v", cause(), context.Canceled)
	}
	free(Released)

	func() {
		defer func() {
			if p := recover(); p != "at the disco" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = e.RunAsLeader(bounded(t), func(context.Context, driver.Fence) error { panic("at the disco") })
	}()
	free(Released)

	// zookeeper.Lost while it works: it is told, and waited for.
	working, finish := make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	go func() {
		result <- e.RunAsLeader(bounded(t), func(ctx context.Context, _ driver.Fence) error {
			close(working)
			<-ctx.Done()
			<-finish
			return context.Cause(ctx)
		})
	}()
	await(t, "elected", working)
	killSession(t, r.Client, r.Proxy)
	free(Lost)
	select {
	case err := <-result:
		t.Errorf("RunAsLeader() = %v while its function was running", err)
	default:
	}
	close(finish)
	if err := <-result; !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("RunAsLeader() = %v, want %v", err, driver.ErrLeaseLost)
	}

	// Given up before it was elected.
	l := campaign(t, MustNewElection(r.Other, "/e", "other"))
	ctx, cancel := context.WithTimeout(bounded(t), 50*time.Millisecond)
	defer cancel()
	err = e.RunAsLeader(ctx, func(context.Context, driver.Fence) error { t.Error("two leaders"); return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("RunAsLeader() = %v, want %v", err, context.DeadlineExceeded)
	}
	l.ReleaseInBackground()
	free(Released)
}

func TestObserverCannotCampaign(t *testing.T) {
	t.Parallel()
	if l, err := MustNewElection(&zookeeper.Client{}, "/e", "").Campaign(bounded(t)); err == nil || l != nil {
		t.Errorf("Campaign() without a name = %v, %v; want a refusal", l, err)
	}
}

// An election with no listener but nil watches nothing for one.
func TestNilListenerIsNone(t *testing.T) {
	t.Parallel()
	e := MustNewElection(open(t, sharedConfig(t)), "/e", "me", nil, WithListener(nil))
	if n := len(e.ln.listeners); n != 0 {
		t.Errorf("%d listeners, want none", n)
	}
}
