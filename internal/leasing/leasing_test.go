package leasing

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// fake is a service in a bubble of synctest where every lock is free. Its answers may be set, and it keeps the times of the requests.
type fake struct {
	mu      sync.Mutex
	began   time.Time
	answers map[string]func(ctx context.Context) error
	sent    map[string][]time.Duration // since began
	left    time.Duration              // of Remaining
}

// silence is no answer.
func silence(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

// deaf is no answer to a client that goes by its deadline, and notices no cancellation.
func deaf(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	time.Sleep(time.Until(deadline))
	return context.DeadlineExceeded
}

func says(err error) func(context.Context) error { return func(context.Context) error { return err } }

func (f *fake) to(what string, answer func(context.Context) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[what] = answer
}

func (f *fake) times(what string) []time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sent[what]
}

func (f *fake) ask(ctx context.Context, what string) error {
	f.mu.Lock()
	f.sent[what] = append(f.sent[what], time.Since(f.began))
	answer := f.answers[what]
	f.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx)
}

func (f *fake) Admit(ctx context.Context, _ driver.KeyID) error { return ctx.Err() }

func (f *fake) Acquire(ctx context.Context, _ Lock) (driver.Fence, bool, error) {
	err := f.ask(ctx, "acquire")
	return driver.Fence{Domain: "d", Token: 7}, err == nil, err
}

func (f *fake) Extend(ctx context.Context, locks []Lock) []error {
	all := make([]error, len(locks))
	for i := range all {
		all[i] = f.ask(ctx, "extend")
	}
	return all
}

func (f *fake) Remove(ctx context.Context, _ Lock, _ bool) (bool, error) {
	err := f.ask(ctx, "remove")
	if errors.Is(err, ErrGone) { // it finds nothing
		return false, nil
	}
	return err == nil, err
}

func (f *fake) Remaining(ctx context.Context, _ driver.KeyID) (time.Duration, error) {
	return f.left, f.ask(ctx, "remaining")
}

const ttl, lookTimeout = 10 * time.Second, 2 * time.Second

// withFake runs a test in a bubble. Advance of clock is a suspension of the machine. Otherwise the lease clock goes with that of the bubble.
func withFake(t *testing.T, test func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{began: time.Now(), answers: map[string]func(context.Context) error{}, sent: map[string][]time.Duration{}}
		clock := leaseclock.NewManual()
		l := New(Config{Name: "lock/fake", Service: f, TTL: ttl, Log: slog.New(slog.DiscardHandler), LookTimeout: lookTimeout,
			Now: func() leaseclock.Instant { return clock.Now().Add(time.Since(f.began)) }})
		test(t, f, l, clock)
		l.Abandon()
	})
}

func take(t *testing.T, l *Locker) driver.Lease {
	t.Helper()
	lease, err := l.TryAcquire(t.Context(), driver.LockRequest{})
	if err != nil {
		t.Fatalf("TryAcquire() = %v, want a lease", err)
	}
	return lease
}

// The machine is suspended while a lock is renewed. The server has counted the time to live since before that.
func TestRenewalCountsFromItsRequest(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual) {
		lease := take(t, l)
		clock.Advance(time.Second)
		f.to("extend", func(context.Context) error { clock.Advance(2 * time.Second); return nil })
		if left, err := lease.Check(t.Context()); left != TrustOf(ttl)-2*time.Second || err != nil {
			t.Errorf("Check() = %v, %v after a renewal that took 2 s, want %v", left, err, TrustOf(ttl)-2*time.Second)
		}
	})
}

// A renewal whose answer is not known changes nothing, and one that comes too late neither.
func TestLeaseWithoutARenewalKeepsItsTrust(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual) {
		lease := take(t, l)
		f.to("extend", says(errors.New("skipped")))
		if _, err := lease.Check(t.Context()); !errors.Is(err, driver.ErrUnavailable) || lease.Err() != nil {
			t.Errorf("Check() = %v, and Err() = %v, want %v and nil", err, lease.Err(), driver.ErrUnavailable)
		}
		<-lease.Done()
		if got := time.Since(f.began); got != TrustOf(ttl) {
			t.Errorf("Done() closed after %v, want %v", got, TrustOf(ttl))
		}
		late := take(t, l)
		f.to("extend", func(context.Context) error { clock.Advance(ttl); return nil })
		if _, err := late.Check(t.Context()); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Check() = %v after a renewal that took longer than the trust, want %v", err, driver.ErrLeaseLost)
		}
	})
}

// A lock that is taken too late is undone, until the request has surely arrived or never will.
func TestLockThatCameTooLateIsUndone(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual) {
		f.to("acquire", func(context.Context) error { clock.Advance(TrustOf(ttl)); return nil })
		if lease, err := l.TryAcquire(t.Context(), driver.LockRequest{}); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, driver.ErrUnavailable)
		}
		synctest.Wait()
		if n := len(f.times("remove")); n != 1 {
			t.Errorf("%d removals were sent, want 1", n)
		}
		f.to("remove", says(ErrGone))
		f.to("acquire", says(errors.New("lost")))
		_, _ = l.TryAcquire(t.Context(), driver.LockRequest{})
		time.Sleep(2 * ttl)
		if n := len(f.times("remove")); n < 4 {
			t.Errorf("%d removals were sent, want more until the lock is found", n)
		}
	})
}

// Waiters of a key share a look, whose end is not that of one of them.
func TestWaitersShareALook(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, _ *leaseclock.Manual) {
		answer := make(chan struct{})
		f.to("remaining", func(context.Context) error { <-answer; return nil })
		impatient, cancel := context.WithCancel(t.Context())
		waits := make(chan error, 10)
		go func() { waits <- l.Wait(impatient, driver.KeyID{}) }()
		synctest.Wait()
		for range 9 {
			go func() { waits <- l.Wait(t.Context(), driver.KeyID{}) }()
		}
		synctest.Wait()
		cancel()
		if err := <-waits; !errors.Is(err, context.Canceled) {
			t.Errorf("Wait() = %v, want %v", err, context.Canceled)
		}
		close(answer)
		for range 9 {
			if err := <-waits; err != nil {
				t.Errorf("Wait() = %v, want <nil>", err)
			}
		}
		if n := len(f.times("remaining")); n != 1 {
			t.Errorf("the server was asked %d times, want once", n)
		}
	})
}

// The heartbeat renews old leases alone, and ends those of a machine that was suspended.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	withFake(t, func(t *testing.T, f *fake, l *Locker, clock *leaseclock.Manual) {
		lease := take(t, l)
		time.Sleep(HeartbeatOf(ttl) - 1)
		if n := len(f.times("extend")); n != 0 {
			t.Errorf("%d renewals of a young lease, want none", n)
		}
		time.Sleep(3 * ttl)
		if lease.Err() != nil {
			t.Errorf("Err() = %v, want <nil>", lease.Err())
		}
		f.to("extend", silence)
		clock.Advance(ttl)
		woken := time.Now()
		<-lease.Done()
		if took := time.Since(woken); took > TickOf(ttl)+PatienceOf(ttl) {
			t.Errorf("Done() closed %v after a suspension", took)
		}
	})
}
