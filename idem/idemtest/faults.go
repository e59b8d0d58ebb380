package idemtest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Faults fails calls, chosen by method and number. [FaultyStore] and [FaultyLocker] have one
// each. It is safe for concurrent use.
//
// Methods are named as in the interface ("Begin", "TryAcquire"). Methods of a lease begin with
// "Lease." The first call of a method on the wrapper has number 1. [Every] stands for each call
// without a fault of its own. If a call has several faults, the last one counts. The call
// returns err, or an error that wraps driver.ErrUnavailable if err is nil.
//
// A method name that is not in the interface panics, because the test is wrong.
type Faults struct {
	mu    sync.Mutex
	names map[string]bool
	calls map[string]int
	plans map[string]map[int]plan
}

// Every is the number for every call.
const Every = 0

// plan replaces a call. apply makes the call itself.
type plan func(ctx context.Context, apply func(context.Context) error) error

func newFaults(names ...string) *Faults {
	f := &Faults{names: make(map[string]bool), calls: make(map[string]int), plans: make(map[string]map[int]plan)}
	for _, n := range names {
		f.names[n] = true
		f.plans[n] = make(map[int]plan)
	}
	return f
}

// Calls returns the number of calls of a method so far, including failed ones.
func (f *Faults) Calls(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known(method)
	return f.calls[method]
}

// FailBefore makes a call return the error without taking effect.
func (f *Faults) FailBefore(method string, call int, err error) {
	err = faultOr(err, method, "was not sent")
	f.Before(method, call, func() error { return err })
}

// Before makes a call run fn first. If fn returns an error, the call returns it without taking
// effect.
func (f *Faults) Before(method string, call int, fn func() error) {
	f.plan(method, call, func(ctx context.Context, apply func(context.Context) error) error {
		if err := fn(); err != nil {
			return err
		}
		return apply(ctx)
	})
}

// LoseReply makes a call take effect and return the error.
func (f *Faults) LoseReply(method string, call int, err error) {
	err = faultOr(err, method, "has lost its answer")
	f.plan(method, call, func(ctx context.Context, apply func(context.Context) error) error {
		_ = apply(ctx)
		return err
	})
}

// Slow makes a call wait until the test releases it. If its context ends first, the call
// returns the error of the context and takes no effect.
func (f *Faults) Slow(method string, call int) *Slowed {
	s := &Slowed{arrived: make(chan struct{}), released: make(chan struct{})}
	f.plan(method, call, func(ctx context.Context, apply func(context.Context) error) error {
		s.arrive.Do(func() { close(s.arrived) })
		select {
		case <-s.released:
			return apply(ctx)
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	return s
}

// DeliverLate makes a call return the error at once. It takes effect when the test calls
// Deliver, or never.
func (f *Faults) DeliverLate(method string, call int, err error) *Late {
	err = faultOr(err, method, "is on its way")
	l := &Late{arrived: make(chan struct{})}
	f.plan(method, call, func(ctx context.Context, apply func(context.Context) error) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.apply = append(l.apply, func() error { return apply(context.WithoutCancel(ctx)) })
		l.arrive.Do(func() { close(l.arrived) })
		return err
	})
	return l
}

// Heal removes the faults of a method that have not happened yet.
func (f *Faults) Heal(method string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known(method)
	clear(f.plans[method])
}

func (f *Faults) plan(method string, call int, p plan) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.known(method)
	f.plans[method][call] = p
}

func (f *Faults) known(method string) {
	if !f.names[method] {
		panic(fmt.Sprintf("idemtest: no method is called %q", method))
	}
}

// pass counts a call and carries out its fault.
func (f *Faults) pass(ctx context.Context, method string, apply func(context.Context) error) error {
	f.mu.Lock()
	f.known(method)
	f.calls[method]++
	n := f.calls[method]
	p := f.plans[method][n]
	if p == nil {
		p = f.plans[method][Every]
	}
	f.mu.Unlock()
	if p == nil {
		return apply(ctx)
	}
	return p(ctx, apply)
}

func faultOr(err error, method, what string) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("idemtest: %s %s: %w", method, what, driver.ErrUnavailable)
}

// Slowed is a call that waits, now or later.
type Slowed struct {
	arrive, release   sync.Once
	arrived, released chan struct{}
}

// Arrived is closed when the call waits.
func (s *Slowed) Arrived() <-chan struct{} { return s.arrived }

// Release lets the call go on, even before it has arrived.
func (s *Slowed) Release() { s.release.Do(func() { close(s.released) }) }

// Late is a call on its way, now or later.
type Late struct {
	arrive  sync.Once
	arrived chan struct{}
	mu      sync.Mutex
	apply   []func() error
}

// Arrived is closed after the call was made.
func (l *Late) Arrived() <-chan struct{} { return l.arrived }

// Deliver lets the calls made so far take effect, each once, in their order. It returns the
// answer of the last one, or an error if there is no call.
func (l *Late) Deliver() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := errors.New("idemtest: nothing to deliver")
	for _, apply := range l.apply {
		err = apply()
	}
	l.apply = nil
	return err
}
