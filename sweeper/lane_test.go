package sweeper_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// promised is how long the attempt of a dead holder is open at most, beside its session.
const promised = 10 * time.Second

// doubts leaves interrupted attempts of a route.
func (b *bundle) doubts(route string, n int) {
	b.Helper()
	for i := range n {
		b.beginOn(route, fmt.Sprint(route, " ", i)).ReleaseInBackground()
	}
}

// askedMost is how often the resolver of a route was asked for one of its doubts at most.
func (b *bundle) askedMost(route string, n int) (most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range n {
		most = max(most, b.asked[idOf(fmt.Sprint(route, " ", i))])
	}
	return most
}

// settledAfter is how long after its begin a new attempt of a healthy route is settled.
func (b *bundle) settledAfter(route string) time.Duration {
	b.Helper()
	key, began := fmt.Sprint(route, " at ", time.Now()), time.Now()
	b.beginOn(route, key).ReleaseInBackground()
	for time.Since(began) < time.Hour {
		time.Sleep(100 * time.Millisecond)
		if rec, err := b.store.Get(b.Context(), idOf(key)); err != nil || rec.State == driver.StateReleased {
			break
		}
	}
	return time.Since(began)
}

// byRoute asks a provider for each route. Those of routes that begin with "dead" do not answer.
func (b *bundle) byRoute(dead func(context.Context) error) []idem.Policy {
	p := b.policy
	p.InDoubt = idem.AskResolver(b.resolver(func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
		if strings.HasPrefix(in.Route, "dead") {
			return idem.StillUnknown(), dead(ctx)
		}
		return idem.NotApplied(), nil
	}))
	return []idem.Policy{p}
}

// Providers that do not answer hold up no other route, and neither do records that fail.
func TestSickRoutesHoldUpNoOther(t *testing.T) {
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	for name, tt := range map[string]struct {
		routes, each int
		dead         func(context.Context) error
		opts         []sweeper.Option
	}{
		"two thousand of one provider": {1, 2000, hang, []sweeper.Option{sweeper.WithPage(500)}},
		"twelve providers":             {12, 20, hang, nil},
		"a provider that fails slowly": {1, 500, func(context.Context) error { time.Sleep(900 * time.Millisecond); return errDown }, nil},
		"a provider that panics":       {1, 300, func(context.Context) error { panic("boom") }, nil},
		"one worker":                   {3, 100, hang, []sweeper.Option{sweeper.WithWorkers(1)}},
		"one of a hundred routes":      {100, 3, hang, nil},
		"a hundred slow ones":          {100, 3, func(context.Context) error { time.Sleep(950 * time.Millisecond); return nil }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, nil)
				for i := range tt.routes {
					b.doubts(fmt.Sprint("dead ", i), tt.each)
				}
				time.Sleep(time.Minute)
				defer b.runWith(b.byRoute(tt.dead), tt.opts...)()
				for range 2 {
					if took := b.settledAfter("healthy"); took > promised {
						t.Errorf("a healthy route's attempt was settled after %v, want %v at most", took, promised)
					}
					time.Sleep(7 * time.Second)
				}
			})
		})
	}
}

// A resolver that ignores its context blocks its own route only.
func TestHungResolversBlockTheirOwnRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hung := make(chan struct{})
		b := setup(t, nil)
		b.doubts("dead", 50)
		stop := b.runWith(b.byRoute(func(context.Context) error { <-hung; return nil }))
		defer stop()
		defer close(hung)
		time.Sleep(time.Minute)
		if took := b.settledAfter("healthy"); took > promised {
			t.Errorf("a healthy route's attempt was settled after %v, want %v at most", took, promised)
		}
	})
}

// Records of the same route that fail, or whose look-up hangs, keep no newer one from its turn.
func TestNoRecordStarves(t *testing.T) {
	for name, tt := range map[string]struct {
		interval time.Duration
		bad      func(ctx context.Context) error
	}{
		"they fail at once, with a long interval": {30 * time.Second, func(context.Context) error { return errDown }},
		"they fail slowly":                        {2 * time.Second, func(context.Context) error { time.Sleep(300 * time.Millisecond); return errDown }},
		"they hang":                               {2 * time.Second, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
					if in.KeyID[0] < 0xf0 && in.Attempt.Number == 1 && !strings.HasPrefix(in.Route, "good") {
						return idem.StillUnknown(), tt.bad(ctx)
					}
					return idem.NotApplied(), nil
				})
				const n = 200
				b.doubts("POST /pay", n)
				time.Sleep(time.Minute)
				defer b.run(sweeper.WithInterval(tt.interval))()
				var good []driver.KeyID
				for i := range n {
					if id := idOf(fmt.Sprint("POST /pay ", i)); id[0] >= 0xf0 {
						good = append(good, id)
					}
				}
				time.Sleep(8 * time.Minute)
				for _, id := range good {
					if rec, err := b.store.Get(b.Context(), id); err != nil || rec.State != driver.StateReleased {
						t.Errorf("a record that can be settled is %v, %v after 8 minutes", rec.State, err)
					}
				}
			})
		})
	}
}

// When a provider answers again, its records are settled soon, wherever they are in the pauses for which they
// were put off.
func TestRouteThatRecovers(t *testing.T) {
	for phase := range 4 {
		t.Run(fmt.Sprint(phase), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var up atomic.Bool
				b := setup(t, nil)
				b.doubts("dead", 300)
				defer b.runWith(b.byRoute(func(ctx context.Context) error {
					if !up.Load() {
						<-ctx.Done()
					}
					return ctx.Err()
				}))()
				time.Sleep(3*time.Minute + time.Duration(phase)*8*time.Second)
				asked := func() (n int) {
					b.mu.Lock()
					defer b.mu.Unlock()
					return len(b.asked)
				}
				before := asked()
				up.Store(true)
				time.Sleep(15 * time.Second) // calls under way end, one succeeds, and the next pass looks at all
				if n := asked(); before > 290 || n != 300 {
					t.Errorf("%d records were asked for, and %d soon after the provider had recovered, want all 300", before, n)
				}
			})
		})
	}
}

// A route whose records fail in a row makes half as many calls as there are workers.
func TestFailingRouteMakesHalfTheCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		b := setup(t, nil)
		b.doubts("POST /pay", 100)
		b.failing(func(driver.KeyID) bool {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(300 * time.Millisecond)
			return true
		})
		b.policy.InDoubt = idem.AskResolver(says(idem.NotApplied()))
		defer b.run(sweeper.WithWorkers(8))()
		time.Sleep(10 * time.Second)
		most.Store(0)
		time.Sleep(time.Minute)
		if n := most.Load(); n != 4 {
			t.Errorf("%d calls at once, want 4 of 8", n)
		}
	})
}

// Failures of a route make it sick only if they follow each other.
func TestFailuresWithSuccessesBetweenThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most, failed atomic.Int32
		b := setup(t, func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			time.Sleep(300 * time.Millisecond)
			return idem.NotApplied(), nil
		})
		var fail sync.Map // by key, once
		b.failing(func(id driver.KeyID) bool {
			_, fails := fail.LoadAndDelete(id)
			if fails {
				failed.Add(1)
			}
			return fails
		})
		defer b.run(sweeper.WithWorkers(2))()
		for _, key := range []string{"a", "b"} {
			fail.Store(idOf(key), true)
			b.interrupted(key)
			b.interrupted(key + "2")
			b.interrupted(key + "3")
			time.Sleep(promised)
			b.wantState(key, driver.StateReleased) // after its failure
			if failed.Swap(0) != 1 || most.Swap(0) != 2 {
				t.Error("want a failure, and two calls at once afterwards")
			}
		}
	})
}

// A record that has failed for long is settled soon after the failure is over.
func TestRecordThatFailedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		b := setup(t, says(idem.NotApplied()))
		b.interrupted("k")
		b.failing(func(driver.KeyID) bool { return !up.Load() })
		defer b.run()()
		time.Sleep(time.Hour)
		up.Store(true)
		time.Sleep(promised)
		b.wantState("k", driver.StateReleased)
	})
}

// A list of unknown outcomes that wait for a person is not read again and again.
func TestIdleListIsNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.doubts("POST /pay", 100)
		var rows, withResponse atomic.Int32
		b.listed = &hooked{Store: b.store, list: func(_ driver.OpenQuery, page *driver.OpenPage) error {
			for _, r := range page.Records {
				rows.Add(1)
				if r.Record.Response != nil {
					withResponse.Add(1)
				}
			}
			return nil
		}}
		defer b.run()()
		time.Sleep(20 * time.Minute)
		rows.Store(0)
		time.Sleep(20 * time.Minute)
		if n := rows.Load(); n > 100*4 || withResponse.Load() > 0 { // each is looked at every 5 minutes
			t.Errorf("%d records were read in 20 minutes, and %d responses; want each record 4 times and no response", n, withResponse.Load())
		}
		if sum := b.sum(); sum.Queued != 100 || b.inbox.size() != 100 {
			t.Errorf("%d cases, want 100", b.inbox.size())
		}
	})
}

// The sweeper settles what it sees of a store of which a part is away, and forgets nothing.
func TestPartOfTheStoreIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, nil)
		b.doubts("dead", 10)
		var away atomic.Bool
		lacks := func(id driver.KeyID) bool { return away.Load() && id[0]%3 == 0 }
		b.listed = &hooked{Store: b.store, list: func(_ driver.OpenQuery, page *driver.OpenPage) (err error) {
			page.Records = slices.DeleteFunc(page.Records, func(r driver.OpenRecord) bool {
				if lacks(r.ID) {
					err = errDown
				}
				return lacks(r.ID)
			})
			return err
		}}
		defer b.runWith(b.byRoute(func(context.Context) error { return nil }), sweeper.WithPage(4))()
		time.Sleep(time.Minute)
		away.Store(true)
		b.doubts("healthy", 30)
		time.Sleep(time.Minute)
		open := 0
		for i := range 30 {
			id := idOf(fmt.Sprint("healthy ", i))
			if rec, err := b.store.Get(b.Context(), id); err != nil || (rec.State != driver.StateReleased) != lacks(id) {
				open++
			}
		}
		if open > 0 || b.inbox.size() != 10 || len(b.inbox.known) != 10 {
			t.Errorf("%d records are wrong, and the inbox knows %d of %d cases, want 10 of 10", open, len(b.inbox.known), b.inbox.size())
		}
		before := b.askedMost("dead", 10)
		away.Store(false)
		time.Sleep(10 * time.Second)
		if n := b.askedMost("dead", 10) - before; n > 1 {
			t.Errorf("a record that was away was asked for %d times in 10 s, as if it were new, want once at most", n)
		}
	})
}
