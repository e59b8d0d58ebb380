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

// cannotRead has the bundle's sweepers work on a store that cannot read these keys.
func (b *bundle) cannotRead(err error, keys ...string) {
	b.Helper()
	unreadable := map[driver.KeyID]error{}
	for _, key := range keys {
		unreadable[idOf(key)] = err
	}
	b.on(&hooked{get: func(_ context.Context, id driver.KeyID) error { return unreadable[id] }, list: func(_ driver.OpenQuery, page *driver.OpenPage) error {
		for i, row := range page.Records {
			if err := unreadable[row.ID]; err != nil {
				page.Records[i] = driver.OpenRecord{ID: row.ID, Record: driver.Record{Started: row.Record.Started}, Err: err}
			}
		}
		return nil
	}})
}

// countTerms counts how often an instance is elected.
func countTerms(n *atomic.Int64, lead sweeper.Lead) sweeper.Option {
	return sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
		return lead(ctx, func(ctx context.Context) error {
			n.Add(1)
			return term(ctx)
		})
	})
}

// The older instance settles all other records.
func TestNewerRecordsAreLeftToNewerInstances(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.NotApplied()))
		newer := b.engine
		for i := range 5 {
			b.interrupted(fmt.Sprint(i))
		}
		b.cannotRead(driver.ErrNewerRecord, "2")
		lead := sweeper.ByLock(b.locker, "s")
		var older, later atomic.Int64
		defer b.run(countTerms(&older, lead))()
		time.Sleep(time.Minute + time.Second) // between two terms
		for _, key := range []string{"0", "1", "3", "4"} {
			b.wantState(key, driver.StateReleased)
		}
		b.wantState("2", driver.StatePending)
		b.mu.Lock()
		for i, p := range b.passes {
			if i > 0 && (p.Newer != 1 || !p.Yielded || p.Failed != 0 || p.Err != nil) {
				t.Errorf("pass %d = %+v, want one newer record, no failure and the office yielded", i, p)
			}
		}
		if n := older.Load(); n != int64(len(b.passes))-1 || n < 25 || n > 31 {
			t.Errorf("%d terms of %d passes in a minute, want one pass a term but the first, every 2 s", n, len(b.passes))
		}
		b.mu.Unlock()
		b.engine, b.listed = newer, b.store
		stop := b.run(countTerms(&later, lead))
		time.Sleep(5 * time.Second)
		b.wantState("2", driver.StateReleased)
		if later.Load() != 1 {
			t.Errorf("the newer instance was elected %d times, want once for good", later.Load())
		}
		stop()
	})
}

// An unknown outcome is not asked more often, its case is queued once, and chores keep
// their pace.
func TestYieldingForgetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.StillUnknown()))
		b.interrupted("k")
		b.interrupted("newer")
		b.cannotRead(driver.ErrNewerRecord, "newer")
		var runs atomic.Int64
		stop := b.run(sweeper.WithMaxBackoff(time.Minute), sweeper.WithChore(10*time.Minute, func(ctx context.Context) error {
			select {
			case <-time.After(time.Minute):
				runs.Add(1)
			case <-ctx.Done():
			}
			return ctx.Err()
		}))
		defer stop()
		time.Sleep(time.Hour)
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := b.asked[idOf("k")]; n < 60 || n > 75 {
			t.Errorf("asked %d times in an hour, want about 60 and the first few", n)
		}
		if b.inbox.size() != 1 {
			t.Errorf("%d cases, want 1", b.inbox.size())
		}
		if n := runs.Load(); n < 5 || n > 6 {
			t.Errorf("the chore was done %d times in an hour, want 5 or 6 times", n)
		}
	})
}

// Each corrupt record is queued once.
func TestCorruptRecordsGoToPeople(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, says(idem.NotApplied()))
		for i := range 5 {
			b.interrupted(fmt.Sprint(i))
		}
		b.cannotRead(fmt.Errorf("%w: 7 bytes", driver.ErrCorruptRecord), "2", "3")
		var n atomic.Int64
		stop := b.run(countTerms(&n, sweeper.ByLock(b.locker, "s")))
		defer stop()
		time.Sleep(time.Hour)
		for _, key := range []string{"0", "1", "4"} {
			b.wantState(key, driver.StateReleased)
		}
		if b.inbox.size() != 2 || b.inbox.cases[0].State != "unreadable" || b.inbox.cases[0].Reason == "" || len(b.inbox.known) != 2 {
			t.Errorf("cases = %+v, want two unreadable ones with a reason", b.inbox.cases)
		}
		if sum := b.sum(); sum.Failed != 0 || sum.Corrupt == 0 || n.Load() != 1 {
			t.Errorf("%d terms of %+v, want one, and no failure", n.Load(), sum)
		}
	})
}
