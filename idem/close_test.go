package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

func TestCloseWaitsForWhatRuns(t *testing.T) {
	b := setup(t, parts{})
	finish := b.started("k", "a", b.pay)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	if err := b.engine.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close() = %v while a handler runs, want %v", err, context.DeadlineExceeded)
	}
	b.wantRefusal("k2", "a", idem.CodeUnavailable)
	res, err := finish()
	b.wantPaid(res, err, 1, false)
	if err := b.engine.Close(context.Background()); err != nil {
		t.Errorf("Close() = %v, want nil", err)
	}
	b.wantState("k", driver.StateCompleted)
}

type closer struct{ err error }

func (c closer) Close() error { return c.err }

func TestCloseClosesWhatItsOptionNames(t *testing.T) {
	t.Parallel()
	gone, late := errors.New("gone"), errors.New("late")
	b := setup(t, parts{opts: []idem.Option{idem.WithCloser(closer{gone}), idem.WithCloser(nil), idem.WithCloser(closer{late})}})
	if err := b.engine.Close(t.Context()); !errors.Is(err, gone) || !errors.Is(err, late) {
		t.Errorf("Close() = %v, want the errors of both closers", err)
	}
}

// session notes how it ends.
type session struct{ ends []string }

func (s *session) Close(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	s.ends = append(s.ends, "closed")
	return nil
}

func (s *session) Abandon() { s.ends = append(s.ends, "abandoned") }

// The locks of operations that are left stay, so that nobody else has their keys. Otherwise nothing needs the locks, also if ctx is over.
func TestCloseEndsTheSessionOfTheLocks(t *testing.T) {
	for _, runs := range []bool{false, true} {
		var s session
		last := &lastCloser{before: &s}
		b := setup(t, parts{opts: []idem.Option{idem.WithLockSession(&s), idem.WithCloser(last)}})
		want := "closed"
		if runs {
			finish := b.started("k", "a", b.pay)
			defer func() { _, _ = finish() }()
			want = "abandoned"
		}
		if err := b.engine.Close(ended()); (err != nil) != runs || len(s.ends) != 1 || s.ends[0] != want {
			t.Errorf("with a running handler %v: Close() = %v, and the session was %v, want %s", runs, err, s.ends, want)
		}
		if last.late {
			t.Error("the session ended before what needs it was closed")
		}
	}
}

// lastCloser notes whether it was closed after a session.
type lastCloser struct {
	before *session
	late   bool
}

func (c *lastCloser) Close() error {
	c.late = len(c.before.ends) > 0
	return nil
}

// ended returns a context that is over.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// TestCloseEndsTheWaitOfDuplicates: those that wait for a request of this process, and those that wait for
// the lock of another one. Close counts handlers, and these run none.
func TestCloseEndsTheWaitOfDuplicates(t *testing.T) {
	for _, where := range []string{"here", "elsewhere"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = time.Hour }})
				finish := b.started("k", "a", b.pay)
				engine := b.engine
				if where == "elsewhere" {
					engine = b.another(b.locks, b.faults)
				}
				refused := make(chan error, 2)
				for range cap(refused) {
					go func() {
						_, err := engine.Do(context.Background(), b.operation("k", "a"), b.pay)
						refused <- err
					}()
				}
				synctest.Wait()
				err := engine.Close(ended())
				if where == "here" && (err == nil || err.Error() != "idem: 1 operations still run: context canceled") {
					t.Errorf("Close() = %v, want it to count the handler and no duplicate", err)
				}
				if where == "elsewhere" && err != nil {
					t.Errorf("Close() = %v, want nil: no handler runs", err)
				}
				for range cap(refused) {
					b.wantRefused(<-refused, idem.CodeUnavailable)
				}
				res, err := finish()
				b.wantPaid(res, err, 1, false)
				synctest.Wait()
				b.wantRuns(1)
			})
		})
	}
}

// TestNothingStartsAfterClose: Close comes and returns at each step of a request. Its handler does not
// run, and its key is as before.
func TestNothingStartsAfterClose(t *testing.T) {
	for _, step := range []string{"Get", "TryAcquire", "Begin"} {
		for open, failOpen := range map[string]bool{"": false, ", fails open": true} {
			t.Run(step+open, func(t *testing.T) {
				b := setup(t, parts{opts: unhurried, policy: func(p *idem.Policy) { p.FailOpen = failOpen }})
				faults := b.faults.Faults
				if step == "TryAcquire" {
					faults = b.locks.Faults
				}
				slow := faults.Slow(step, 1)
				if failOpen {
					faults.FailBefore(step, 1, nil)
					faults.Before(step, 1, func() error { _ = b.engine.Close(ended()); return driver.ErrUnavailable })
				}
				answered := make(chan error, 1)
				go func() {
					_, err := b.do("k", "a")
					answered <- err
				}()
				if !failOpen {
					<-slow.Arrived()
					if err := b.engine.Close(ended()); err != nil {
						t.Errorf("Close() = %v, want nil: no handler runs", err)
					}
					slow.Release()
				}
				b.wantRefused(<-answered, idem.CodeUnavailable)
				b.wantFree("k")
				b.wantRuns(0)
				if rec, err := b.store.Get(t.Context(), idem.NewKeyID("m1", "k")); err != nil || rec.State.Open() {
					t.Errorf("Get() = %+v, %v, want no open attempt", rec, err)
				}
			})
		}
	}
}

// The same in joined mode. The transaction that has the key is rolled back.
func TestJoinedNothingStartsAfterClose(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"Get", "Bind", "BeginJoined"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }})
			closes := func() error {
				if err := b.engine.Close(ended()); err != nil {
					t.Errorf("Close() = %v, want nil: no handler runs", err)
				}
				return nil
			}
			switch step {
			case "Get":
				b.ledger.onGet = closes
			case "Bind":
				b.ledger.onBind = closes
			case "BeginJoined":
				b.ledger.onBegin = func() (bool, driver.JoinedBegin, error) { return false, driver.JoinedBegin{}, closes() }
			}
			_, err := b.doWith("k", "a", b.paying(201))
			b.wantRefused(err, idem.CodeUnavailable)
			b.wantRuns(0)
			b.wantEvents(telemetry.EventReleased, b.saw(telemetry.EventBegun)) // who counts what is open has to see the end
			b.ledger.onGet = nil
			if rec, err := b.ledger.Get(t.Context(), idem.NewKeyID("m1", "k")); err != nil || rec.State != driver.StateNone {
				t.Errorf("Get() = %v, %v, want no attempt", rec.State, err)
			}
			if held, err := b.ledger.Held(t.Context(), idem.NewKeyID("m1", "k")); err != nil || held {
				t.Errorf("Held() = %v, %v, want that the key is free", held, err)
			}
		})
	}
}

// Close waits for a joined handler until its transaction has committed.
func TestJoinedCloseWaitsForWhatRuns(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		if err := b.engine.Close(ended()); err == nil || err.Error() != "idem: 1 operations still run: context canceled" {
			t.Errorf("Close() = %v while a handler runs, want it to count the handler", err)
		}
		return b.paying(201)(ctx)
	})
	b.wantPaid(res, err, 1, false)
	if err := b.engine.Close(ended()); err != nil {
		t.Errorf("Close() = %v after the handler, want nil", err)
	}
	b.wantLines("payment 1")
}

// TestCloseGivesUpAnAbortWithoutAnError: nothing ran, so nobody has to keep the session of its lock. The store may
// still get a Begin. The next holder of the lock finds an attempt of an earlier fence then, and its holder is over.
func TestCloseGivesUpAnAbortWithoutAnError(t *testing.T) {
	b := setup(t, parts{})
	b.faults.FailBefore("Begin", idemtest.Every, nil)
	b.faults.LoseReply("Begin", 2, nil)
	b.faults.FailBefore("Abort", idemtest.Every, nil)
	for n := range 3 {
		_, err := b.do(fmt.Sprint(n), "a")
		b.wantRefused(err, idem.CodeUnavailable)
	}
	if err := b.engine.Close(ended()); err != nil {
		t.Errorf("Close() = %v, want nil", err)
	}
	b.eventually("the aborts are given up", func() bool { return b.saw(telemetry.EventSettleAbandoned) == 3 })
	for n := range 3 {
		b.wantFree(fmt.Sprint(n))
	}
}
