package idem_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// superseded runs a request that loses its lock and cannot store its outcome. Another instance settles
// the attempt as settle says. Then the store answers again, and the duplicates that have waited for the
// request get their answers.
func superseded(t *testing.T, delay time.Duration, settle func(b *bundle, id driver.KeyID)) (b *bundle, first idem.Result, duplicates []idem.Result, errs []error) {
	t.Helper()
	b = setup(t, parts{opts: []idem.Option{idem.WithSettleTimeout(time.Second)}, policy: func(p *idem.Policy) { p.DuplicateWait = time.Hour }})
	id := idem.NewKeyID("m1", "k")
	b.faults.FailBefore("Settle", idemtest.Every, nil)
	finish := b.started("k", "a", b.pay)
	type answer struct {
		res idem.Result
		err error
	}
	answers := make(chan answer, 2)
	for range cap(answers) {
		go func() {
			res, err := b.do("k", "a")
			answers <- answer{res, err}
		}()
	}
	synctest.Wait()
	told := make(chan struct{})
	go func() {
		defer close(told)
		first, _ = finish()
	}()
	time.Sleep(delay)
	b.locker.Revoke(id)
	settle(b, id)
	b.faults.Heal("Settle")
	<-told
	for range cap(answers) {
		a := <-answers
		duplicates, errs = append(duplicates, a.res), append(errs, a.err)
	}
	return b, first, duplicates, errs
}

// TestDuplicatesGetTheRecordOfASupersededRequest: what the record says is the outcome. The request's own
// result is not, whether it is settled before its answer or in the background.
func TestDuplicatesGetTheRecordOfASupersededRequest(t *testing.T) {
	applied := func(b *bundle, id driver.KeyID) {
		resolution := idem.Applied(idem.Response{Status: 201, Body: []byte("payment of an operator")})
		if _, err := b.another(b.locker, b.store).Decide(b.Context(), id, driver.Attempt{}, resolution, driver.Decision{By: "ops"}, &b.policy); err != nil {
			b.Fatal(err)
		}
	}
	unknown := func(b *bundle, id driver.KeyID) {
		if _, err := b.another(b.locker, b.store).Resolve(b.Context(), id, &b.policy); err != nil {
			b.Fatal(err)
		}
		resolution := idem.NotApplied()
		if _, err := b.another(b.locker, b.store).Decide(b.Context(), id, driver.Attempt{}, resolution, driver.Decision{By: "ops"}, &b.policy); err != nil {
			b.Fatal(err)
		}
	}
	for when, delay := range map[string]time.Duration{"before the answer": 500 * time.Millisecond, "in the background": 5 * time.Second} {
		t.Run("applied, "+when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _, duplicates, errs := superseded(t, delay, applied)
				for i, res := range duplicates {
					if errs[i] != nil || string(res.Response.Body) != "payment of an operator" || !res.Replayed {
						t.Errorf("duplicate = %q, replayed %v, %v, want what the record says", res.Response.Body, res.Replayed, errs[i])
					}
				}
				b.wantRuns(1)
			})
		})
		t.Run("not applied, "+when, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, _, duplicates, errs := superseded(t, delay, unknown)
				for i, res := range duplicates {
					if errs[i] != nil || string(res.Response.Body) != "payment 2" {
						t.Errorf("duplicate = %q, %v, want the next execution's answer", res.Response.Body, errs[i])
					}
				}
				b.wantRuns(2) // the operator has said that the first had no effect
			})
		})
	}
}

// TestDuplicatesOfAnAbandonedOutcomeReadTheRecord: a request whose outcome cannot be stored ends the wait
// of its duplicates without a result of its own.
func TestDuplicatesOfAnAbandonedOutcomeReadTheRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, parts{opts: []idem.Option{idem.WithSettleTimeout(time.Second)}, policy: func(p *idem.Policy) { p.DuplicateWait = time.Hour }})
		b.faults.FailBefore("Settle", idemtest.Every, nil)
		finish := b.started("k", "a", b.pay)
		refused := make(chan error, 1)
		go func() {
			_, err := b.do("k", "a")
			refused <- err
		}()
		synctest.Wait()
		res, err := finish()
		b.wantPaid(res, err, 1, false)
		if len(refused) > 0 {
			t.Errorf("the duplicate was answered with %v before its outcome was stored", <-refused)
		}
		_ = b.engine.Close(ended())
		b.wantRefused(<-refused, idem.CodeUnavailable)
	})
}

// hasty is a locker whose Wait says again and again that a lock looks free.
type hasty struct{ driver.Locker }

func (hasty) Wait(ctx context.Context, _ driver.KeyID) error {
	select {
	case <-time.After(3 * time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestWaitOfADuplicateIsOneSum: however often a duplicate waits, for requests of this process and for the
// locks of others, all of it together takes no longer than DuplicateWait.
func TestWaitOfADuplicateIsOneSum(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const wait = 10 * time.Second
		b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = wait }})
		finish := b.started("k", "a", b.pay)
		engine := b.another(hasty{b.locker}, b.faults)
		asked := time.Now()
		took := make(chan time.Duration, 3)
		for range cap(took) { // one asks for the lock, and the others wait for that one
			go func() {
				b.wantRefusalBy(engine, b.operation("k", "a"), idem.CodeInProgress)
				took <- time.Since(asked)
			}()
		}
		for range cap(took) {
			if d := <-took; d != wait {
				t.Errorf("a duplicate was refused after %v, want %v", d, wait)
			}
		}
		if _, err := finish(); err != nil {
			t.Errorf("Do() = %v", err)
		}
	})
}
