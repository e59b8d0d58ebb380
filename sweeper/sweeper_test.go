package sweeper_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInterruptedAttemptsAreSettledWithoutARetry(t *testing.T) {
	for name, tt := range map[string]struct {
		verdict func(context.Context, idem.Interrupted) (idem.Resolution, error)
		want    driver.State
	}{
		"applied":     {says(idem.Applied(idem.Response{Status: 201})), driver.StateCompleted},
		"not applied": {says(idem.NotApplied()), driver.StateReleased},
		"unknown":     {says(idem.StillUnknown()), driver.StateUnknown},
		"no resolver": {nil, driver.StateUnknown},
		"error": {func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			return idem.NotApplied(), errors.New("down")
		}, driver.StateUnknown},
		"panic": {func(context.Context, idem.Interrupted) (idem.Resolution, error) { panic("boom") }, driver.StateUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, tt.verdict)
				const n = 100
				for i := range n {
					b.interrupted(fmt.Sprint(i))
				}
				stop := b.run(sweeper.WithPage(40))
				defer stop()
				time.Sleep(10 * time.Second) // of the fake clock
				for i := range n {
					b.wantState(fmt.Sprint(i), tt.want)
				}
				sum := b.sum()
				if tt.want == driver.StateUnknown {
					if b.inbox.size() != n || sum.Queued != n {
						t.Errorf("%d cases in the inbox, %d told, want %d", b.inbox.size(), sum.Queued, n)
					}
				} else if b.inbox.size() != 0 || sum.Applied+sum.Released != n {
					t.Errorf("%d cases in the inbox, want none; %+v", b.inbox.size(), sum)
				}
			})
		})
	}
}

// A live holder is left alone. Its attempt is settled soon after it has died.
func TestLiveHolderIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.NotApplied()))
		lease := b.begin("k")
		stop := b.run()
		defer stop()
		time.Sleep(time.Hour)
		b.wantState("k", driver.StatePending)
		if len(b.asked) != 0 {
			t.Error("the resolver was asked about a live holder")
		}
		lease.ReleaseInBackground() // it dies
		time.Sleep(7 * time.Second)
		b.wantState("k", driver.StateReleased)
	})
}

func TestYoungAttemptsAreNotLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.NotApplied()))
		b.interrupted("k")
		stop := b.run(sweeper.WithMinAge(time.Minute))
		defer stop()
		time.Sleep(59 * time.Second)
		b.wantState("k", driver.StatePending)
		time.Sleep(5 * time.Second)
		b.wantState("k", driver.StateReleased)
	})
}

// The outcome is settled when the resolver can tell.
func TestUnknownIsAskedEverLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var can atomic.Bool
		b := setup(t, func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			if can.Load() {
				return idem.Applied(idem.Response{Status: 201}), nil
			}
			return idem.StillUnknown(), nil
		})
		b.interrupted("k")
		stop := b.run(sweeper.WithMaxBackoff(time.Minute))
		defer stop()
		time.Sleep(time.Hour)
		b.mu.Lock()
		n := b.asked[idOf("k")]
		b.mu.Unlock()
		if n < 60 || n > 75 {
			t.Errorf("asked %d times in an hour, want about 60 and the first few", n)
		}
		if b.inbox.size() != 1 {
			t.Errorf("%d cases, want 1", b.inbox.size())
		}
		can.Store(true)
		time.Sleep(2 * time.Minute)
		b.wantState("k", driver.StateCompleted)
		if len(b.inbox.known) != 0 {
			t.Error("the inbox has not forgotten what was settled")
		}
	})
}

// A service gives the sweeper its resolver and nothing else. The key is remembered for as long
// as its route says.
func TestSettlingKeepsTheTimesOfTheRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.policy.ResultTTL, b.policy.KeyTTL = 15*24*time.Hour, 30*24*time.Hour
		b.interrupted("k")
		stop := b.runWith([]idem.Policy{{InDoubt: idem.AskResolver(says(idem.Applied(idem.Response{Status: 201})))}}, sweeper.WithInterval(time.Hour))
		defer stop()
		time.Sleep(14 * 24 * time.Hour)
		b.wantState("k", driver.StateCompleted)
		time.Sleep(15 * 24 * time.Hour)
		b.wantState("k", driver.StateExpired)
		time.Sleep(2 * 24 * time.Hour)
		b.wantState("k", driver.StateNone)
	})
}

// These resolvers ignore their context.
func TestHungResolversDoNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{})
		var asked atomic.Int64
		b := setup(t, func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			asked.Add(1)
			<-hung
			return idem.NotApplied(), nil // far too late to count
		})
		for i := range 30 {
			b.interrupted(fmt.Sprint(i))
		}
		stop := b.run(sweeper.WithWorkers(3))
		time.Sleep(time.Hour)
		if n := asked.Load(); n != 3 {
			t.Errorf("%d resolvers hang, want 3", n)
		}
		var unknown int
		for i := range 30 {
			switch rec, _ := b.store.Get(t.Context(), idOf(fmt.Sprint(i))); rec.State {
			case driver.StateUnknown:
				unknown++
			case driver.StatePending: // the resolver was not asked
			default:
				t.Errorf("%d is %v", i, rec.State)
			}
		}
		if unknown != 3 || b.inbox.size() != 3 {
			t.Errorf("%d are unknown and %d with people, want those 3 that were asked about", unknown, b.inbox.size())
		}
		close(hung)
		time.Sleep(6 * time.Minute)
		stop()
		for i := range 30 {
			b.wantState(fmt.Sprint(i), driver.StateReleased)
		}
	})
}

func TestOutageIsOutlived(t *testing.T) {
	down := errors.New("down")
	for _, method := range []string{"ListOpen", "Get", "Settle"} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, says(idem.NotApplied()))
				b.interrupted("k")
				for call := range 4 {
					b.store.FailBefore(method, call+1, down)
				}
				stop := b.run()
				defer stop()
				time.Sleep(time.Minute)
				b.wantState("k", driver.StateReleased)
				if b.sum().Failed == 0 {
					t.Error("no pass told of the outage")
				}
			})
		})
	}
}

// One instance runs the chore, after each pause.
func TestChoresAreTheLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		var runs, at atomic.Int64
		chore := sweeper.WithChore(10*time.Minute, func(context.Context) error {
			if at.Add(1) > 1 {
				t.Error("two instances do the chore at once")
			}
			time.Sleep(time.Second)
			at.Add(-1)
			runs.Add(1)
			return errors.New("told, and no reason to stop")
		})
		lead := sweeper.WithLead(sweeper.ByLock(b.locker, "s"))
		defer b.run(lead, chore)()
		defer b.run(lead, chore)()
		time.Sleep(time.Hour)
		if n := runs.Load(); n < 5 || n > 7 {
			t.Errorf("ran %d times in an hour, want about 6", n)
		}
	})
}

// The removal of many markers takes minutes.
func TestLongChoreDoesNotStopTheSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.NotApplied()))
		ended := false
		stop := b.run(sweeper.WithChore(10*time.Minute, func(ctx context.Context) error {
			<-ctx.Done()
			time.Sleep(time.Second)
			ended = true
			return ctx.Err()
		}))
		time.Sleep(time.Second)
		b.interrupted("k")
		time.Sleep(10 * time.Second)
		b.wantState("k", driver.StateReleased)
		if stop(); !ended {
			t.Error("the sweeper has left its chore behind")
		}
	})
}

// A chore that the end of a term has cut off is due in the next one.
func TestChoreThatIsCutOffStaysDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		began := 0
		stop := b.run(sweeper.WithChore(10*time.Minute, func(ctx context.Context) error {
			if began++; began == 1 {
				<-ctx.Done()
			}
			return ctx.Err()
		}), sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			return term(ctx)
		}))
		time.Sleep(2 * time.Minute)
		if stop(); began != 2 {
			t.Errorf("the chore began %d times in two terms, want once in each", began)
		}
	})
}

func TestNewRefusesWhatCannotWork(t *testing.T) {
	b := setup(t, nil)
	for name, opt := range map[string]sweeper.Option{
		"WithInterval(0s)": sweeper.WithInterval(0), "WithMaxBackoff(0s)": sweeper.WithMaxBackoff(0), "WithMinAge(-1ns)": sweeper.WithMinAge(-1),
		"WithChore every 0s":     sweeper.WithChore(0, func(context.Context) error { return nil }),
		"WithChore every 1h0m0s": sweeper.WithChore(time.Hour, nil), "WithLead": sweeper.WithLead(sweeper.ByLock(nil, "sweeper")),
	} {
		if _, err := sweeper.New(b.engine, []idem.Policy{b.policy}, opt); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("New() = %v, want an error that names %s", err, name)
		}
	}
	observed := sweeper.WithObserver(func(context.Context, sweeper.Pass) {})
	chore := sweeper.WithChore(time.Hour, func(context.Context) error { return nil })
	if _, err := sweeper.New(b.engine, []idem.Policy{{}}, sweeper.WithInterval(0), observed, chore); err == nil {
		t.Error("New() with an interval of 0, an observer and a chore = nil, want an error")
	}
	if _, err := sweeper.New(b.engine, []idem.Policy{{}}, sweeper.WithMinAge(0), sweeper.WithObserver(nil)); err != nil {
		t.Errorf("New() with no least age = %v", err)
	}
	if _, err := sweeper.New(nil, []idem.Policy{b.policy}); err == nil {
		t.Error("New() without an engine = nil, want an error")
	}
	for name, policies := range map[string][]idem.Policy{
		"none": nil, "two for one route": {{Name: "pay"}, {Name: "pay"}}, "one that cannot work": {{KeyTTL: -1}},
	} {
		if _, err := sweeper.New(b.engine, policies); err == nil {
			t.Errorf("New() with policies %q = nil, want an error", name)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("MustNew() without policies did not panic")
		}
	}()
	sweeper.MustNew(b.engine, nil)
}
