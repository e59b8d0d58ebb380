package idem_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

var errDown = errors.Join(driver.ErrUnavailable, errors.New("down"))

// failOpen is a bundle whose route fails open, and whose duplicates wait.
func failOpen(t *testing.T) *bundle {
	t.Helper()
	return setup(t, parts{policy: func(p *idem.Policy) { p.FailOpen, p.DuplicateWait = true, patience }})
}

// doubtful is a handler that tells when it has begun, and ends in doubt.
func (b *bundle) doubtful(begun chan<- struct{}, end <-chan struct{}) idem.Handler {
	return func(context.Context) (idem.Response, error) {
		b.runs.Add(1)
		close(begun)
		<-end
		return idem.Response{Status: 500}, nil
	}
}

// A route does not fail open after an attempt was seen to run, in any way,
// and no record has said since that it came to nothing.
func TestFailOpenForgetsNoAttempt(t *testing.T) {
	t.Parallel()
	t.Run("seen by its lock", func(t *testing.T) {
		t.Parallel()
		b := failOpen(t)
		begun, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		reads := 0
		store, locker := idemtest.NewFaultyStore(b.store), idemtest.NewFaultyLocker(b.locker)
		store.Before("Get", idemtest.Every, func() error {
			if reads++; reads > 2 {
				return errDown
			}
			return nil
		})
		locker.Before("Wait", 1, func() error { close(end); return nil }) // the second read has seen the attempt
		locker.Before("TryAcquire", 1, func() error {
			go func() {
				defer close(done)
				_, _ = b.doWith("k", "x", b.doubtful(begun, end))
			}()
			<-begun
			return nil
		})
		_, err := b.another(locker, store).Do(t.Context(), b.operation("k", "x"), b.pay)
		<-done
		b.wantRefused(err, idem.CodeUnavailable)
		b.wantRuns(1)
	})
	t.Run("joined in this process", func(t *testing.T) {
		t.Parallel()
		b := failOpen(t)
		begun, end, done, down := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
		store := idemtest.NewFaultyStore(b.store)
		store.Before("Get", idemtest.Every, func() error {
			select {
			case <-down:
				return errDown
			default:
				return nil
			}
		})
		e := b.another(b.locker, store, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
			if ev.Type == telemetry.EventJoined {
				close(down)
				close(end)
			}
		}))
		go func() {
			defer close(done)
			_, _ = e.Do(t.Context(), b.operation("k", "x"), b.doubtful(begun, end))
		}()
		<-begun
		_, err := e.Do(t.Context(), b.operation("k", "x"), b.pay)
		<-done
		b.wantRefused(err, idem.CodeUnavailable)
		b.wantRuns(1)
	})
	t.Run("joined one that has failed open", func(t *testing.T) {
		t.Parallel()
		b := failOpen(t)
		begun, end, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		b.locks.FailBefore("TryAcquire", idemtest.Every, errDown)
		e := b.another(b.locks, b.store,
			idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
				if ev.Type == telemetry.EventJoined {
					close(end)
				}
			}))
		go func() {
			defer close(done)
			_, _ = e.Do(t.Context(), b.operation("k", "x"), b.doubtful(begun, end))
		}()
		<-begun
		_, err := e.Do(t.Context(), b.operation("k", "x"), b.pay)
		<-done
		b.wantRefused(err, idem.CodeUnavailable)
		b.wantRuns(1)
	})
}

// A resolver that knows of a success is believed, although its response cannot
// be kept.
func TestResolvedResponseThatCannotBeKept(t *testing.T) {
	t.Parallel()
	b := setup(t, parts{policy: func(p *idem.Policy) {
		p.InDoubt = resolverSays(idem.Applied(idem.Response{Status: 201, Header: map[string][]string{"X": make([]string, 5000)}}))
	}})
	b.wantAnswer("k", "x", 500)
	_, err := b.doWith("k", "x", answers(500))
	b.wantRefused(err, idem.CodeResultUnavailable)
	if st, err := b.engine.Status(t.Context(), "m1", "k"); err != nil || st.State != driver.StateCompleted {
		t.Errorf("Status() = %v, %v, want completed", st.State, err)
	}
}

// A store that finds a used key, and cannot read what is stored with it.
type unreadableStore struct{ driver.Store }

func (s unreadableStore) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	rec, err := s.Store.Get(ctx, id)
	return rec, errors.Join(err, errDown)
}

// TestFailOpenNotForAUsedKey: the record cannot be read, but it says that the key was used.
func TestFailOpenNotForAUsedKey(t *testing.T) {
	t.Parallel()
	b := failOpen(t)
	b.wantPayment("k", "x", 1, false)
	b.wantRefusalBy(b.another(b.locker, unreadableStore{b.store}), b.operation("k", "x"), idem.CodeUnavailable)
	b.wantRuns(1)
	res, err := b.another(b.locker, unreadableStore{b.store}).Do(t.Context(), b.operation("fresh", "x"), b.pay)
	b.wantPaid(res, err, 2, false)
}

// TestFailOpenIsForClientsThatWait, and tells them of the error of the handler.
func TestFailOpenIsForClientsThatWait(t *testing.T) {
	b := failOpen(t)
	ctx, leave := context.WithCancel(t.Context())
	b.faults.Before("Get", idemtest.Every, func() error { leave(); return errDown })
	_, err := b.engine.Do(ctx, b.operation("k", "a"), b.pay)
	b.wantRefused(err, idem.CodeUnavailable)
	b.wantRuns(0)
	boom := errors.New("boom")
	_, err = b.doWith("k", "a", func(context.Context) (idem.Response, error) { return idem.Response{}, boom })
	if !errors.Is(err, boom) {
		t.Errorf("Do() = %v, want the error of the handler", err)
	}
}

// TestFailOpenRunsLikeAnyHandler: a client that leaves does not cancel the payment, and the
// deadline of the route does.
func TestFailOpenRunsLikeAnyHandler(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		limit time.Duration
		want  error
	}{
		"the client leaves": {0, nil},
		"the deadline":      {time.Nanosecond, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := failOpen(t)
			b.policy.HandlerTimeout = tt.limit
			b.locks.FailBefore("TryAcquire", idemtest.Every, errDown)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			res, err := b.engine.Do(ctx, b.operation("k", "x"), func(ctx context.Context) (idem.Response, error) {
				leave()
				if tt.want != nil {
					select {
					case <-ctx.Done():
					case <-time.After(patience):
					}
				}
				if err := context.Cause(ctx); !errors.Is(err, tt.want) {
					t.Errorf("the context of the handler ended with %v, want %v", err, tt.want)
				}
				return b.pay(ctx)
			})
			b.wantPaid(res, err, 1, false)
		})
	}
}

func TestFailOpen(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.FailOpen = true }})
	b.faults.FailBefore("Get", idemtest.Every, nil)
	for run := 1; run <= 2; run++ { // it can execute twice: that is the option
		res := b.wantPayment("k", "a", run, false)
		if res.Attempt != 0 {
			t.Errorf("attempt = %d, want 0", res.Attempt)
		}
	}
	b.wantEvents(telemetry.EventFailedOpen, 2)
	_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		if _, err := idem.CheckOwner(ctx); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("CheckOwner() = %v, want %v", err, driver.ErrUnavailable)
		}
		return idem.Response{}, nil
	})
}

// TestFailOpenKnowsItsLimits: what is known to run, or to be in doubt, is not
// run beside.
func TestFailOpenKnowsItsLimits(t *testing.T) {
	open := func(p *idem.Policy) {
		p.FailOpen = true
		p.InDoubt = resolverSays(idem.Applied(created(70)))
	}
	t.Run("running elsewhere, lock service away", func(t *testing.T) {
		b := setup(t, parts{policy: open})
		b.begin(idem.NewKeyID("m1", "k"), "a", driver.Fence{Domain: "elsewhere", Token: 1})
		b.locks.FailBefore("TryAcquire", idemtest.Every, nil)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		b.wantRuns(0)
	})
	t.Run("in doubt, lock service away", func(t *testing.T) {
		b := setup(t, parts{})
		b.wantAnswer("k", "a", 500)
		open(&b.policy)
		b.locks.FailBefore("TryAcquire", idemtest.Every, nil)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		b.wantRuns(0)
	})
	t.Run("applied, and the store away when that is settled", func(t *testing.T) {
		b := setup(t, parts{policy: open})
		b.interrupted("k", "a")
		b.faults.FailBefore("Settle", 1, nil)
		b.wantRefusal("k", "a", idem.CodeUnavailable)
		b.wantRuns(0)
		b.wantPayment("k", "a", 70, true)
	})
	t.Run("nothing known, lock service away", func(t *testing.T) {
		b := setup(t, parts{policy: open})
		b.locks.FailBefore("TryAcquire", idemtest.Every, nil)
		b.wantPayment("k", "a", 1, false)
	})
}
