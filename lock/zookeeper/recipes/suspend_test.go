package recipes

import (
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// still is a rig whose lease clock stands still.
func still(t testing.TB) (r *rig, clock *leaseclock.Manual) {
	t.Helper()
	clock = leaseclock.NewManual()
	r = newRig(t, 0)
	r.Client = open(t, r.Config.WithClock(func() time.Duration { return clock.Now().Sub(leaseclock.Instant{}) }))
	return r, clock
}

// A hold of a reentrant mutex is lost by the clock alone.
func TestSuspendedHoldIsTold(t *testing.T) {
	t.Parallel()
	r, clock := still(t)
	hold, err := MustNewReentrantMutex(r.Client, "/m").Acquire(bounded(t), "owner")
	if err != nil {
		t.Fatal(err)
	}
	if err := hold.Err(); err != nil {
		t.Fatalf("Err() before = %v", err)
	}
	r.Proxy.Freeze(testserver.Both)
	clock.Advance(r.Config.SessionTimeout)
	if err := hold.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Err() after a suspension = %v, want %v", err, driver.ErrLeaseLost)
	}
	await(t, "Done() after a suspension", hold.Done())
}

// The machine is suspended while a place is taken, or while its line is read.
func TestSuspendedWhileQueueingUp(t *testing.T) {
	t.Parallel()
	place := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/m/"))
	turn := testserver.All(testserver.Op(testserver.OpGetChildren2), testserver.Contains("/m"))
	for what, tt := range map[string]struct {
		answer testserver.Match
		want   error
	}{"place in line": {place, driver.ErrUnavailable}, "turn": {turn, driver.ErrLeaseLost}} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, clock := still(t)
			m := MustNewMutex(r.Client, "/m")
			l, err := m.Acquire(bounded(t)) // which makes the parent
			if err != nil {
				t.Fatal(err)
			}
			recipetest.Release(r, l)
			hold := r.Proxy.HoldNextReply(tt.answer)
			got := make(chan error, 1)
			go func() {
				_, err := m.TryAcquire(bounded(t))
				got <- err
			}()
			await(t, "answer", hold.Held())
			clock.Advance(r.Config.SessionTimeout)
			hold.Release()
			if err := <-got; !errors.Is(err, tt.want) {
				t.Errorf("TryAcquire() = %v, want %v", err, tt.want)
			}
		})
	}
}
