package simulate

import (
	"errors"
	"fmt"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// ledger is the resource that handlers change. It remembers the highest fence of each
// operation, and refuses lower ones if it checks fences. A lock domain that was left is over for the
// operation, as in package fence.
type ledger struct {
	checks bool

	mu      sync.Mutex
	fences  map[string]driver.Fence
	over    map[string]map[string]bool // lock domains, by operation
	effects map[string][]effect        // by operation
}

// effect is one payment.
type effect struct {
	attempt uint32
	fence   driver.Fence
}

var errFenced = errors.New("ledger: a later holder has been here")

func newLedger(checks bool) *ledger {
	return &ledger{checks: checks, fences: make(map[string]driver.Fence), over: make(map[string]map[string]bool), effects: make(map[string][]effect)}
}

// raise lets a fence in. Needs mu.
func (l *ledger) raise(op string, f driver.Fence) error {
	if !l.checks {
		return nil
	}
	latest := l.fences[op]
	if f.Before(latest) || l.over[op][f.Domain] {
		return errFenced
	}
	if latest.Domain != f.Domain {
		l.leave(op, latest.Domain)
	}
	l.fences[op] = f
	return nil
}

// leave makes a lock domain be over for the operation. Needs mu.
func (l *ledger) leave(op, domain string) {
	if l.over[op] == nil {
		l.over[op] = make(map[string]bool)
	}
	l.over[op][domain] = true
}

// pay makes a payment and returns its receipt. With once it makes no second one for the
// operation, as a resource does that knows idempotency keys of its own.
func (l *ledger) pay(ex idem.Execution, once bool) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.raise(ex.OperationID, ex.Fence); err != nil {
		return "", err
	}
	if n := len(l.effects[ex.OperationID]); n == 0 || !once {
		l.effects[ex.OperationID] = append(l.effects[ex.OperationID], effect{ex.Attempt, ex.Fence})
	}
	return receipt(ex.OperationID, len(l.effects[ex.OperationID])), nil
}

// look raises the fence, and returns the receipt of the latest payment, or "" without one. The domain of
// the attempt in doubt is over, if it is another one.
func (l *ledger) look(op string, f, doubt driver.Fence) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if doubt.Domain != f.Domain {
		l.leave(op, doubt.Domain)
	}
	if err := l.raise(op, f); err != nil {
		return "", err
	}
	if n := len(l.effects[op]); n > 0 {
		return receipt(op, n), nil
	}
	return "", nil
}

// paid is the payments of an operation.
func (l *ledger) paid(op string) []effect {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.effects[op]
}

func receipt(op string, n int) string { return fmt.Sprintf("payment %d of %s", n, op) }
