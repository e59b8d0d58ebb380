package idem

import (
	"context"
	"sync"
	"time"
)

// bounded is a context that ends at a time, with a lease, or when it is
// stopped. It makes a real one, with its timer, its registration with the
// parent and the goroutine that watches the lease, only where somebody asks
// for Done. Every request needs five of these, and in-process stores and
// locks, and many handlers, never ask.
type bounded struct {
	context.Context               // the parent
	at              time.Time     // when it ends; zero: never, or its clock stands still yet
	limit           time.Duration // for how long it lasts, where its clock stands still yet
	lease           Lease         // nil: none to end with

	mu      sync.Mutex
	full    context.Context // what Done made
	cancel  context.CancelCauseFunc
	stopped bool
	looked  bool // at its clock, once
}

// withTimeout is [context.WithTimeout] as described at bounded. Its clock
// starts when somebody asks for how long, or a second time whether it is over:
// calls that do neither, those within the process, need not be timed. stop has
// to be called.
func withTimeout(parent context.Context, d time.Duration) *bounded {
	return &bounded{Context: parent, limit: d}
}

// renew makes b, which is zero or was stopped, the context of another call. It is
// false where somebody has asked for Done and may yet rely on the answer.
func (b *bounded) renew(parent context.Context, d time.Duration) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.full != nil {
		return false
	}
	b.Context, b.at, b.limit, b.stopped, b.looked = parent, time.Time{}, d, false, false
	return true
}

// Deadline returns the earlier one of the parent's and its own.
func (b *bounded) Deadline() (time.Time, bool) {
	b.mu.Lock()
	b.start()
	at, from := b.at, b.Context
	b.mu.Unlock()
	parent, ok := from.Deadline()
	if at.IsZero() || ok && parent.Before(at) {
		return parent, ok
	}
	return at, true
}

// start starts the clock. The caller holds b.mu.
func (b *bounded) start() {
	if b.limit > 0 {
		b.at, b.limit = time.Now().Add(b.limit), 0
	}
}

// Done returns the channel of a real context, made on the first call.
func (b *bounded) Done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.expand().Done()
}

// Err agrees with Done wherever Done was asked for.
func (b *bounded) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.look()
	switch {
	case b.full != nil:
		return b.full.Err()
	case b.Context.Err() != nil:
		return b.Context.Err()
	case b.stopped:
		return context.Canceled
	case b.limit > 0:
		if b.looked {
			b.start()
		}
		b.looked = true
	case !b.at.IsZero() && !time.Now().Before(b.at):
		return context.DeadlineExceeded
	}
	return nil
}

// Value knows what the parent does. Where there is a real context it is that
// one's to tell, so that [context.Cause] finds the cause, and contexts derived
// from this one are registered with it instead of watching it.
func (b *bounded) Value(key any) any {
	b.mu.Lock()
	b.look()
	from := b.full
	if from == nil {
		from = b.Context
	}
	b.mu.Unlock()
	return from.Value(key)
}

// stop ends the context. It may be called more than once.
func (b *bounded) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	if b.cancel != nil {
		b.cancel(context.Canceled)
	}
}

// look ends the context where its lease was lost. The caller holds b.mu.
func (b *bounded) look() {
	if b.lease != nil && !b.stopped && b.lease.Err() != nil {
		b.expand()
		b.cancel(ErrLeaseLost)
	}
}

// expand makes the real context. The caller holds b.mu.
func (b *bounded) expand() context.Context {
	if b.full != nil {
		return b.full
	}
	b.start()
	b.full, b.cancel = context.WithCancelCause(b.Context)
	if !b.at.IsZero() {
		cancel := b.cancel
		var stopTimer context.CancelFunc
		b.full, stopTimer = context.WithDeadline(b.full, b.at)
		b.cancel = func(cause error) {
			cancel(cause)
			stopTimer()
		}
	}
	switch {
	case b.stopped:
		b.cancel(context.Canceled)
	case b.lease != nil:
		go watch(b.full, b.lease, b.cancel)
	}
	return b.full
}

// watch cancels ctx with cause ErrLeaseLost as soon as the lease cannot be
// trusted, and ends with either.
func watch(ctx context.Context, lease Lease, cancel context.CancelCauseFunc) {
	select {
	case <-lease.Done():
		if lease.Err() != nil {
			cancel(ErrLeaseLost)
		}
	case <-ctx.Done():
	}
}
