package idem

import (
	"errors"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Defaults of [WithMaxWaiting].
const (
	defaultMaxWaitingPerKey   = 100
	defaultMaxWaitingPerScope = 1000
)

var errTooManyWait = errors.New("idem: too many duplicates wait already")

// waiters bounds the duplicates that wait, because each of them keeps the body of its request.
type waiters struct {
	mostPerKey, mostPerScope int

	mu      sync.Mutex
	byKey   map[driver.KeyID]int // an entry is never 0
	byScope map[string]int       // an entry is never 0
}

// enter counts a request that is about to wait, or refuses it as in progress.
func (w *waiters) enter(r *request) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byKey[r.id] >= w.mostPerKey || w.byScope[r.Scope] >= w.mostPerScope {
		return refuse(CodeInProgress, errTooManyWait)
	}
	w.byKey[r.id]++
	w.byScope[r.Scope]++
	return nil
}

func (w *waiters) leave(r *request) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byKey[r.id]--; w.byKey[r.id] == 0 {
		delete(w.byKey, r.id)
	}
	if w.byScope[r.Scope]--; w.byScope[r.Scope] == 0 {
		delete(w.byScope, r.Scope)
	}
}
