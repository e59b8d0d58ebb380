package idem_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

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
