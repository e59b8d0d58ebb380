package sweeper_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// askedAll is how often the resolver was asked for the records "0" to n-1.
func (b *bundle) askedAll(n int) (all int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range n {
		all += b.asked[idOf(fmt.Sprint(i))]
	}
	return all
}

// A term that ends under a call counts no failure of its record. The next leader looks at it anew.
func TestEndOfATermIsNoFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.NotApplied()))
		b.old("a", "b")
		var reads atomic.Int32
		b.engineOn(&hooked{get: func(ctx context.Context, _ driver.KeyID) error {
			reads.Add(1)
			<-ctx.Done()
			return fmt.Errorf("%w: %w", driver.ErrUnavailable, ctx.Err())
		}})
		defer b.run(sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
			ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond) // shorter than a call of the store may take
			defer cancel()
			_ = term(ctx)
			return nil
		}))()
		time.Sleep(time.Minute)
		if sum := b.sum(); sum.Looked == 0 || sum.Failed > 0 || reads.Load() < 2*10 {
			t.Errorf("%d reads in %+v, want both records read in each term and no failure", reads.Load(), sum)
		}
	})
}

// A term that ends within a pass forgets no pause of the records that the pass has not come to.
func TestEndOfATermKeepsThePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		var end atomic.Pointer[context.CancelFunc]
		b := setup(t, func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			if cancel := end.Swap(nil); cancel != nil {
				(*cancel)()
			}
			return idem.StillUnknown(), nil
		})
		for i := range n {
			b.interrupted(fmt.Sprint(i))
		}
		terms := make(chan context.CancelFunc, 9)
		defer b.run(sweeper.WithWorkers(1), sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
			ctx, cancel := context.WithCancel(ctx)
			terms <- cancel
			return term(ctx)
		}))()
		time.Sleep(time.Hour) // the pauses have reached their limit of 5 minutes
		cancel, before := <-terms, b.askedAll(n)
		end.Store(&cancel) // at the first question of the next turn
		<-terms            // a new term
		time.Sleep(4 * time.Minute)
		if asked := b.askedAll(n) - before; asked < n || asked > n+1 {
			t.Errorf("%d questions for %d records within a turn and 4 minutes, want one each", asked, n)
		}
	})
}

// Records that waited for a call of a sick route when a term ended are looked at in the next one.
func TestRecordsThatWaitedAtTheEndOfATerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var up atomic.Bool
		b := setup(t, nil)
		b.doubts("dead", 60)
		defer b.runWith(b.byRoute(func(ctx context.Context) error {
			if !up.Load() {
				<-ctx.Done()
			}
			return nil
		}), sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
			if up.Load() {
				return term(ctx)
			}
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			err := term(ctx)
			up.Store(true)
			return err
		}))()
		time.Sleep(time.Minute + promised)
		synctest.Wait()
		for i := range 60 {
			if key := fmt.Sprint("dead ", i); b.asked[idOf(key)] == 0 {
				t.Errorf("the resolver was not asked for %s", key)
			}
		}
	})
}

// A record that waited for a call when a term ended is taken once in the next term. No call of the sweeper
// finds it held by another one.
func TestRecordThatWaitedIsTakenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 12 // eight are asked for before the route is sick
		b := setup(t, nil)
		b.doubts("dead", n)
		terms := 0
		defer b.runWith(b.byRoute(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }),
			sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
				if terms++; terms > 1 {
					return term(ctx)
				}
				ctx, cancel := context.WithTimeout(ctx, 3*time.Second+500*time.Millisecond)
				defer cancel()
				err := term(ctx)
				for i, waited := 0, 0; i < n; i++ { // a person settles all but one of those that waited
					id := idOf(fmt.Sprint("dead ", i))
					if b.asked[id] == 0 {
						if waited++; waited == 4 {
							continue
						}
					}
					rec, err := b.store.Get(b.Context(), id)
					if err == nil {
						_, err = b.engine.Decide(b.Context(), id, rec.Attempt, idem.NotApplied(), driver.Decision{By: "ann", Reason: "known"}, &b.policy)
					}
					if err != nil {
						t.Errorf("Decide() = %v", err)
					}
				}
				return err
			}))()
		time.Sleep(time.Minute)
		if sum := b.sum(); sum.Held > 0 || sum.Unknown <= 8 {
			t.Errorf("passes = %+v, want no record held and one in doubt", sum)
		}
	})
}
