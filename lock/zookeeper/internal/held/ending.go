package held

import (
	"fmt"
	"slices"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// ending is whether and why a lease has ended. mu may be taken while the session's lock
// is held.
type ending struct {
	done chan struct{}

	mu       sync.Mutex
	finished bool
	err      error
	ends     []*func(error) // to be told of the end
}

// Done implements [driver.Lease].
func (e *ending) Done() <-chan struct{} { return e.done }

// Over says why the lease is not held any more, and is nil while it is held.
func (e *ending) Over() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.finished && e.err == nil {
		return fmt.Errorf("%w: it was released", driver.ErrLeaseLost)
	}
	return e.err
}

// loss is why the lease was lost, as far as it is known without a look at the clock.
func (e *ending) loss() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// OnEnd has f called when the lease ends, with the value of Err at that time, before
// anything else can happen. If the lease has ended, f is called at once. The lease's and
// the session's locks are held during the call, so f must not wait for anything and must
// not use either of them. forget takes the call back.
func (e *ending) OnEnd(f func(error)) (forget func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.finished {
		f(e.err)
		return func() {}
	}
	entry := &f
	e.ends = append(e.ends, entry)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ends = slices.DeleteFunc(e.ends, func(other *func(error)) bool { return other == entry })
	}
}

// end ends the lease. It returns false if it had ended already. A lost lease stays lost.
func (e *ending) end(err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.finished {
		return false
	}
	e.finished, e.err = true, err
	close(e.done)
	for _, f := range e.ends {
		(*f)(err)
	}
	e.ends = nil
	return true
}
