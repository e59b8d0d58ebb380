package idem_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
)

// restorable is a lock service whose fences can go back, as those of a ZooKeeper do that was restored
// from a backup.
type restorable struct {
	*memorylock.Locker

	mu     sync.Mutex
	domain int
	last   uint64
	asked  int   // how often RenewDomain was called
	err    error // of RenewDomain
}

func (l *restorable) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, req)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	return &restorableLease{lease, driver.Fence{Domain: fmt.Sprint("domain ", l.domain), Token: l.last}}, nil
}

func (l *restorable) RenewDomain(_ context.Context, seen driver.Fence) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	if l.last++; l.err == nil && seen.Domain == fmt.Sprint("domain ", l.domain) && l.last < seen.Token {
		l.domain++
	}
	return l.err == nil && seen.Domain != fmt.Sprint("domain ", l.domain), l.err
}

// restore puts an older state back.
func (l *restorable) restore(last uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = last
}

func (l *restorable) calls() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked
}

type restorableLease struct {
	driver.Lease
	fence driver.Fence
}

func (l *restorableLease) Fence() driver.Fence { return l.fence }

// restored is an engine on a lock service whose data goes back in each test.
func restored(t *testing.T) (*bundle, *restorable, func(driver.Store) *idem.Engine) {
	b := setup(t, parts{})
	l := &restorable{Locker: memorylock.New()}
	engine := func(s driver.Store) *idem.Engine { return b.another(l, s, idem.WithObserver(b.observe)) }
	b.engine = engine(b.faults)
	return b, l, engine
}

// The record says what fence the lock service has lost, whether or not anybody noted it.
func TestAStaleFenceThatTheServiceLacksRenewsTheDomain(t *testing.T) {
	for _, state := range []string{"released", "unknown"} {
		t.Run(state, func(t *testing.T) {
			b, l, _ := restored(t)
			l.restore(100)
			answer := answers(500)
			if state == "released" {
				answer = func(ctx context.Context) (idem.Response, error) {
					idem.NoEffect(ctx)
					return idem.Response{Status: 503}, nil
				}
			}
			if _, err := b.doWith("k", "a", answer); err != nil {
				t.Fatal(err)
			}
			l.restore(10)
			res, err := b.do("k", "a")
			if state == "released" {
				b.wantPaid(res, err, 1, false)
			} else {
				b.wantRefused(err, idem.CodeOutcomeUnknown)
				if _, err := b.engine.Resolve(t.Context(), idem.NewKeyID("m1", "k"), &b.policy); !errors.Is(err, idem.ErrForeignDomain) {
					t.Errorf("Resolve() = %v, want ErrForeignDomain", err)
				}
				if err := b.store.RetireDomain(t.Context(), "domain 0", driver.Decision{By: "me"}); err != nil {
					t.Fatal(err)
				}
				rec, err := b.engine.Decide(t.Context(), idem.NewKeyID("m1", "k"), driver.Attempt{}, idem.NotApplied(), driver.Decision{By: "me"}, &b.policy)
				if err != nil || rec.State != driver.StateReleased {
					t.Errorf("Decide() after the domain was retired = %v, %v, want released", rec.State, err)
				}
			}
			if got := b.saw(telemetry.EventDomainRenewed); got != 1 {
				t.Errorf("%d events %v, want 1", got, telemetry.EventDomainRenewed)
			}
		})
	}
}

// The first lease is compared with what another process has noted, before its handler runs.
func TestTheFirstLeaseIsComparedWithTheNotedFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, l, engine := restored(t)
		l.restore(100)
		b.wantPayment("before", "a", 1, false)
		synctest.Wait() // for the note in the background
		l.restore(10)
		b.engine = engine(b.faults)
		var fence driver.Fence
		if _, err := b.doWith("after", "a", func(ctx context.Context) (idem.Response, error) {
			x, _ := idem.FromContext(ctx)
			fence = x.Fence
			return created(b.runs.Add(1)), nil
		}); err != nil {
			t.Fatal(err)
		}
		if fence.Domain != "domain 1" || l.calls() != 1 {
			t.Errorf("fence %v after %d questions, want one of domain 1 after one", fence, l.calls())
		}
		if _, err := b.do("later", "a"); err != nil || l.calls() != 1 {
			t.Errorf("Do() = %v after %d questions, want no further one", err, l.calls())
		}
	})
}

// What it costs: one call of the store for the first lease, and a note at most once a second.
func TestTheHistoryCostsNoTripOfAPayment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _, _ := restored(t)
		for i := range 100 {
			res, err := b.do(fmt.Sprint("k", i), "a")
			b.wantPaid(res, err, i+1, false)
			time.Sleep(100 * time.Millisecond)
		}
		if asked, noted := b.faults.Calls("HighestFence"), b.faults.Calls("NoteFence"); asked != 1 || noted < 9 || noted > 11 {
			t.Errorf("100 payments in 10 s made %d calls of HighestFence and %d of NoteFence, want 1 and about 10", asked, noted)
		}
	})
}

// A service that cannot get another domain runs nothing under fences that go back.
func TestNothingRunsUnderFencesThatGoBack(t *testing.T) {
	b, l, _ := restored(t)
	l.restore(100)
	b.wantPayment("before", "a", 1, false)
	l.restore(10)
	l.err = fmt.Errorf("%w: not permitted", driver.ErrUnavailable)
	b.wantRefusal("after", "a", idem.CodeUnavailable)
	if n := b.runs.Load(); n != 1 {
		t.Errorf("%d handlers ran, want 1", n)
	}
	l.restore(200) // other writes have moved the service past the highest fence
	b.wantPayment("after", "a", 2, false)
}

// A service whose domain was retired is taken into use again. Others take its holders for dead, so it
// gets another domain before anything runs.
func TestARetiredDomainIsNotUsedAgain(t *testing.T) {
	b, l, _ := restored(t)
	if err := b.store.RetireDomain(t.Context(), "domain 0", driver.Decision{By: "me"}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		if x, _ := idem.FromContext(ctx); x.Fence.Domain != "domain 1" {
			t.Errorf("the handler has fence %v, want one of domain 1", x.Fence)
		}
		return idem.Response{Status: 201}, nil
	}); err != nil || l.calls() != 1 {
		t.Errorf("Do() = %v after %d questions, want one", err, l.calls())
	}
}
