package idem_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

func TestDuplicateOfARunningRequest(t *testing.T) {
	t.Run("is refused as in progress", func(t *testing.T) {
		b := setup(t, parts{})
		finish := b.started("k", "a", b.pay)
		b.wantRefusal("k", "a", idem.CodeInProgress)
		res, err := finish()
		b.wantPaid(res, err, 1, false)
	})
	t.Run("with another request is a mismatch", func(t *testing.T) {
		b := setup(t, parts{})
		finish := b.started("k", "a", b.pay)
		b.wantRefusal("k", "b", idem.CodeKeyReused)
		_, _ = finish()
	})
	t.Run("waits and gets its outcome", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
		finish := b.started("k", "a", b.pay)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				b.wantPayment("k", "a", 1, true)
			})
		}
		b.eventually("all wait", func() bool { return b.saw(telemetry.EventJoined) == 8 })
		_, _ = finish()
		wg.Wait()
		b.wantRuns(1)
	})
	t.Run("waits and runs where the first had no effect", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
		finish := b.started("k", "a", answers(429))
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.wantPayment("k", "a", 1, false)
		}()
		b.eventually("it waits", func() bool { return b.saw(telemetry.EventJoined) == 1 })
		_, _ = finish()
		<-done
	})
}

func TestDuplicateElsewhere(t *testing.T) {
	t.Run("is refused as in progress", func(t *testing.T) {
		b := setup(t, parts{})
		lease := b.hold("k")
		b.wantRefusal("k", "a", idem.CodeInProgress)
		lease.ReleaseInBackground()
		b.wantPayment("k", "a", 1, false)
	})
	t.Run("mismatch beats in-progress", func(t *testing.T) {
		b := setup(t, parts{})
		lease := b.hold("k")
		defer lease.ReleaseInBackground()
		b.begin(idem.NewKeyID("m1", "k"), "other", lease.Fence())
		b.wantRefusal("k", "a", idem.CodeKeyReused)
	})
	t.Run("mismatch with one that begins meanwhile", func(t *testing.T) {
		b := setup(t, parts{opts: unhurried})
		slow := b.locks.Slow("TryAcquire", 1)
		done := make(chan error)
		go func() {
			_, err := b.do("k", "a")
			done <- err
		}()
		<-slow.Arrived() // it has read that there is no record
		lease := b.hold("k")
		defer lease.ReleaseInBackground()
		b.begin(idem.NewKeyID("m1", "k"), "other", lease.Fence())
		slow.Release()
		b.wantRefused(<-done, idem.CodeKeyReused)
	})
	t.Run("waits on the lock and reads the outcome", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
		lease := b.hold("k")
		id := idem.NewKeyID("m1", "k")
		begun := b.begin(id, "a", lease.Fence())
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.wantPayment("k", "a", 77, true)
		}()
		b.eventually("it waits", func() bool { return b.saw(telemetry.EventWaited) == 1 })
		resp := created(77)
		if _, err := b.store.Settle(t.Context(), id, driver.Settlement{Attempt: begun, ID: begun.Nonce,
			State: driver.StateCompleted, Response: (*driver.Response)(&resp), ResultTTL: time.Hour, KeyTTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		lease.ReleaseInBackground()
		<-done
		b.wantRuns(0)
	})
}

func TestManyDuplicatesExecuteOnce(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
	var wg sync.WaitGroup
	for i := range 256 {
		wg.Go(func() {
			key := fmt.Sprintf("k%d", i%4)
			res, err := b.do(key, "a")
			if err != nil || res.Response.Status != 201 {
				t.Errorf("Do(%q) = %v, %v", key, res, err)
			}
		})
	}
	wg.Wait()
	b.wantRuns(4)
}

// The lock is held elsewhere, and then a service fails.
func TestDuplicateElsewhereWhileServicesFail(t *testing.T) {
	for name, tt := range map[string]struct {
		fail func(b *bundle, leave context.CancelFunc)
		code idem.Code
	}{
		"store": {func(b *bundle, _ context.CancelFunc) { b.faults.FailBefore("Get", 2, nil) }, idem.CodeUnavailable},
		"lock":  {func(b *bundle, _ context.CancelFunc) { b.locks.FailBefore("Wait", 1, nil) }, idem.CodeUnavailable},
		"none, and the client leaves": {func(b *bundle, leave context.CancelFunc) {
			b.locks.Before("Wait", 1, func() error { leave(); return context.Canceled })
		}, idem.CodeInProgress},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			b.locks.FailBefore("TryAcquire", 1, driver.ErrLocked)
			tt.fail(b, leave)
			_, err := b.engine.Do(ctx, b.operation("k", "a"), b.pay)
			b.wantRefused(err, tt.code)
			b.wantRuns(0)
		})
	}
}

// TestMismatchIsNotToldBeforeBegin: a request on its way to Begin proves nothing
// about another one with its key, which may be the one that the record is for.
func TestMismatchIsNotToldBeforeBegin(t *testing.T) {
	b := setup(t, parts{opts: unhurried})
	slow := b.faults.Slow("Begin", 1)
	done := make(chan error)
	go func() {
		_, err := b.do("k", "b")
		done <- err
	}()
	<-slow.Arrived()
	b.wantRefusal("k", "a", idem.CodeInProgress)
	b.wantRefusal("k", "b", idem.CodeInProgress)
	slow.Release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	b.wantRefusal("k", "a", idem.CodeKeyReused)
}

// TestOtherRequestBeginsFirst: it comes second, and overtakes the first one.
func TestOtherRequestBeginsFirst(t *testing.T) {
	b := setup(t, parts{opts: unhurried})
	slow := b.locks.Slow("TryAcquire", 1)
	done := make(chan error)
	go func() {
		_, err := b.do("k", "a")
		done <- err
	}()
	<-slow.Arrived()
	b.wantPayment("k", "b", 1, false)
	slow.Release()
	b.wantRefused(<-done, idem.CodeKeyReused)
}

// TestDuplicateOfAResponseThatIsNotKept waits in this process, and gets no empty answer.
func TestDuplicateOfAResponseThatIsNotKept(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
	duplicate := make(chan error, 1)
	_, err := b.doWith("k", "a", func(context.Context) (idem.Response, error) {
		go func() {
			_, err := b.do("k", "a")
			duplicate <- err
		}()
		b.eventually("the duplicate waits", func() bool { return b.saw(telemetry.EventJoined) == 1 })
		return idem.Response{Status: 201, Omitted: true}, nil
	})
	if err != nil {
		t.Error(err)
	}
	b.wantRefused(<-duplicate, idem.CodeResultUnavailable)
}

// oldNews keeps the first answer of Get back, so that it is out of date when it arrives.
type oldNews struct {
	driver.Store
	calls        atomic.Int64
	read, answer chan struct{}
}

func (s *oldNews) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	if s.calls.Add(1) == 1 {
		close(s.read)
		<-s.answer
	}
	return rec, err
}

// A duplicate reads the record before the first request begins, and sees its answer after
// the first request has ended. It reads again and takes no lock.
func TestOldRecordLeadsToNoSecondLock(t *testing.T) {
	b := setup(t, parts{})
	s := &oldNews{Store: b.store, read: make(chan struct{}), answer: make(chan struct{})}
	engine := b.another(b.locks, s)
	duplicate := make(chan idem.Result, 1)
	go func() {
		res, err := engine.Do(context.Background(), b.operation("k", "a"), b.pay)
		if err != nil {
			t.Errorf("Do() of the duplicate = %v", err)
		}
		duplicate <- res
	}()
	<-s.read
	first, err := engine.Do(context.Background(), b.operation("k", "a"), b.pay)
	if err != nil || first.Replayed {
		t.Errorf("Do() of the first request = %+v, %v, want an execution", first, err)
	}
	close(s.answer)
	if res := <-duplicate; !res.Replayed {
		t.Errorf("Do() of the duplicate = %+v, want a replay", res)
	}
	if n := b.locks.Calls("TryAcquire"); n != 1 {
		t.Errorf("%d locks were taken, want 1", n)
	}
	if n := b.runs.Load(); n != 1 {
		t.Errorf("handler ran %d times, want once", n)
	}
}
