package idem

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// endingLease ends when the test says so.
type endingLease struct {
	Lease
	done chan struct{}
	err  error
}

func (le *endingLease) Done() <-chan struct{} { return le.done }

func (le *endingLease) Err() error {
	select {
	case <-le.done:
		return le.err
	default:
		return nil
	}
}

// However a context comes to its end, and whether or not somebody asked for
// Done before, all that can be asked of it agrees.
func TestBoundedEnds(t *testing.T) {
	t.Parallel()
	ends := map[string]struct {
		end        func(b *bounded, le *endingLease, parent context.CancelCauseFunc)
		err, cause error
	}{
		"deadline":      {func(*bounded, *endingLease, context.CancelCauseFunc) { time.Sleep(time.Second) }, context.DeadlineExceeded, context.DeadlineExceeded},
		"lease lost":    {func(_ *bounded, le *endingLease, _ context.CancelCauseFunc) { close(le.done) }, context.Canceled, ErrLeaseLost},
		"stop":          {func(b *bounded, _ *endingLease, _ context.CancelCauseFunc) { b.stop() }, context.Canceled, context.Canceled},
		"parent's end":  {func(_ *bounded, _ *endingLease, p context.CancelCauseFunc) { p(ErrUnavailable) }, context.Canceled, ErrUnavailable},
		"stop, twice":   {func(b *bounded, _ *endingLease, _ context.CancelCauseFunc) { b.stop(); b.stop() }, context.Canceled, context.Canceled},
		"lost, stopped": {func(b *bounded, le *endingLease, _ context.CancelCauseFunc) { close(le.done); _ = b.Err(); b.stop() }, context.Canceled, ErrLeaseLost},
	}
	asked := map[string]func(b *bounded){
		"nothing was asked": func(*bounded) {},
		"Done was asked":    func(b *bounded) { b.Done() },
		"Err was asked":     func(b *bounded) { _ = b.Err() },
	}
	first := map[string]func(b *bounded){
		"Err first":   func(b *bounded) { _ = b.Err() },
		"Done first":  func(b *bounded) { <-b.Done() },
		"Cause first": func(b *bounded) { _ = context.Cause(b) },
	}
	for end, e := range ends {
		for before, ask := range asked {
			for order, look := range first {
				t.Run(end+", "+before+", "+order, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						parent, cancel := context.WithCancelCause(t.Context())
						defer cancel(nil)
						le := &endingLease{done: make(chan struct{}), err: errors.Join(ErrLeaseLost)}
						b := &bounded{Context: parent, at: time.Now().Add(time.Second), lease: le}
						defer b.stop()
						ask(b)
						if b.Err() != nil {
							t.Fatalf("Err() before = %v", b.Err())
						}
						e.end(b, le, cancel)
						synctest.Wait()
						look(b)
						select {
						case <-b.Done():
						default:
							t.Error("Done() is open")
						}
						if !errors.Is(b.Err(), e.err) || !errors.Is(context.Cause(b), e.cause) {
							t.Errorf("Err() = %v, Cause = %v, want %v, %v", b.Err(), context.Cause(b), e.err, e.cause)
						}
					})
				})
			}
		}
	}
}

// The clock of a time-out starts with the first who looks at it, and from then
// on it goes.
func TestBoundedClockStartsWhenLookedAt(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(b *bounded){
		"Deadline":  func(b *bounded) { b.Deadline() },
		"Done":      func(b *bounded) { b.Done() },
		"Err twice": func(b *bounded) { _, _ = b.Err(), b.Err() },
		"a child":   func(b *bounded) { _, stop := context.WithCancel(b); stop() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := withTimeout(t.Context(), time.Second)
				defer b.stop()
				time.Sleep(time.Minute)
				if err := b.Err(); err != nil {
					t.Errorf("Err() before anybody has looked = %v", err)
				}
				look(b)
				time.Sleep(999 * time.Millisecond)
				if err := b.Err(); err != nil {
					t.Errorf("Err() within the time-out = %v", err)
				}
				time.Sleep(time.Millisecond)
				synctest.Wait()
				if err := b.Err(); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Err() after the time-out = %v", err)
				}
			})
		})
	}
}

// The context of a call serves the next one, unless somebody may still rely on its
// end.
func TestBoundedIsRenewedOnlyWhereNobodyCanTell(t *testing.T) {
	t.Parallel()
	var b bounded
	if !b.renew(t.Context(), time.Hour) || b.Err() != nil {
		t.Fatalf("a new one: Err() = %v, want <nil>", b.Err())
	}
	b.stop()
	if !errors.Is(b.Err(), context.Canceled) {
		t.Errorf("stopped: Err() = %v, want %v", b.Err(), context.Canceled)
	}
	type key struct{}
	if !b.renew(context.WithValue(t.Context(), key{}, 1), 0) || b.Err() != nil || b.Value(key{}) != 1 {
		t.Errorf("renewed: Err() = %v, Value() = %v, want those of the second call", b.Err(), b.Value(key{}))
	}
	if at, ok := b.Deadline(); ok {
		t.Errorf("renewed without a limit: Deadline() = %v, want none", at)
	}
	done := b.Done()
	b.stop()
	if b.renew(t.Context(), time.Hour) {
		t.Error("one whose Done was asked for is renewed")
	}
	select {
	case <-done:
	default:
		t.Error("its Done is not closed")
	}
}

// A lease that was given back does not end the context.
func TestBoundedOutlivesARelease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		le := &endingLease{done: make(chan struct{})}
		b := &bounded{Context: t.Context(), lease: le}
		b.Done()
		close(le.done)
		synctest.Wait()
		if b.Err() != nil {
			t.Errorf("Err() = %v, want nil", b.Err())
		}
		b.stop()
	})
}

// Contexts derived from one are registered with it: they end at once and cost
// no goroutine.
func TestBoundedHasChildren(t *testing.T) {
	t.Parallel()
	b := &bounded{Context: t.Context(), at: time.Now().Add(time.Hour)}
	child, cancel := context.WithCancel(b)
	defer cancel()
	b.stop()
	if child.Err() == nil { // a goroutine would come later
		t.Error("the child goes on behind its parent's end")
	}
}
