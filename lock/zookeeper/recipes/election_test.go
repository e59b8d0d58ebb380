package recipes

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

func campaign(t testing.TB, e *Election) *Lease {
	t.Helper()
	l, err := e.Campaign(bounded(t))
	if err != nil {
		t.Fatalf("Campaign() = %v", err)
	}
	return l
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
	func() {
		defer func() {
			if p := recover(); p != "at the disco" {
				t.Errorf("recovered %v", p)
			}
		}()
		_ = e.RunAsLeader(bounded(t), func(context.Context, driver.Fence) error { panic("at the disco") })
	}()
	free(Released)

	// The office is lost while the function works. The function is told, and waited for.
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

	// Without a function it does not even stand, and given up before it was elected it has not led.
	l := campaign(t, MustNewElection(r.Other, "/e", "other"))
	ctx, cancel := context.WithTimeout(bounded(t), 50*time.Millisecond)
	defer cancel()
	err := e.RunAsLeader(ctx, func(context.Context, driver.Fence) error { t.Error("two leaders"); return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("RunAsLeader() = %v, want %v", err, context.DeadlineExceeded)
	}
	if err := e.RunAsLeader(bounded(t), nil); err == nil || errors.Is(err, driver.ErrLocked) {
		t.Errorf("RunAsLeader(nil) = %v, want a refusal", err)
	}
	l.ReleaseInBackground()
	free(Released)
	var got []State
	for _, ev := range told.Events() {
		if ev.Path != "/e" || ev.Candidate != "me" || (ev.State == Lost) != errors.Is(ev.Err, driver.ErrLeaseLost) {
			t.Errorf("event %+v", ev)
		}
		got = append(got, ev.State)
	}
	if want := []State{Candidate, Acquired, Released, Candidate, Acquired, Lost, Candidate, Released}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
}
