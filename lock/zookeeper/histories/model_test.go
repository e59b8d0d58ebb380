package histories_test

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// history is what several callers did, and when, for a checker of linearizability. Each operation
// has to have happened at one moment between its call and its return, and those moments have to
// make sense.
type history struct {
	began time.Time

	mu  sync.Mutex
	ops []porcupine.Operation
}

// forever is the return of an operation that may happen at any time after its call.
const forever = math.MaxInt64

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// add notes an operation that returned at the given time, or now if that is 0.
func (h *history) add(who int, call int64, o op, returned int64) {
	if returned == 0 {
		returned = h.now()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: who, Input: o, Call: call, Return: returned})
}

// want checks the history against a model.
func (h *history) want(t *testing.T, m model) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if got := porcupine.CheckOperationsTimeout(m.checker(), h.ops, patience); got != porcupine.Ok {
		t.Errorf("the history of %d operations is %v, want an order that explains it", len(h.ops), got)
		for _, o := range h.ops {
			t.Logf("%3d: %10d to %10d: %+v", o.ClientId, o.Call, o.Return, o.Input)
		}
	}
	t.Logf("%d operations", len(h.ops))
}

// op takes n units of a lock, or gives them back if n is below zero. Calls that did not succeed are
// in no history, because they must have no effect.
type op struct {
	owner int
	n     int
	fence uint64
}

// model is a lock with so many units. An exclusive lock has one. A writer takes as many units as
// there may be readers, and a downgrade gives all but one of them back. Fences grow in the order of
// the grants, which is the order of the line.
type model struct {
	units     int
	reentrant bool // one owner may take the units again under the same fence
}

const allReaders = 1 << 20

var (
	exclusiveModel = model{units: 1}
	reentrantModel = model{units: math.MaxInt32, reentrant: true}
	rwModel        = model{units: allReaders}
	semaphoreModel = model{units: historyPermits}
)

func (m model) checker() porcupine.Model {
	type state struct {
		taken int
		last  op // the latest grant of a new place
	}
	return porcupine.Model{
		Init: func() any { return state{} },
		Step: func(s, input, _ any) (bool, any) {
			now, o := s.(state), input.(op)
			after := state{now.taken + o.n, now.last}
			switch {
			case o.n < 0:
				return after.taken >= 0, after
			case m.reentrant && now.taken > 0:
				return o == now.last, after
			}
			after.last = o
			return after.taken <= m.units && o.fence > now.last.fence, after
		},
	}
}

func TestModelsRefuseNonsense(t *testing.T) {
	t.Parallel()
	take := func(n int, fence uint64) op { return op{n: n, fence: fence} }
	for name, tt := range map[string]struct {
		m   model
		ops []op
	}{
		"two holders":           {exclusiveModel, []op{take(1, 1), take(1, 2), take(-1, 1), take(-1, 2)}},
		"a smaller fence":       {exclusiveModel, []op{take(1, 2), take(-1, 2), take(1, 1)}},
		"two owners":            {reentrantModel, []op{take(1, 1), {owner: 1, n: 1, fence: 2}}},
		"reader beside writer":  {rwModel, []op{take(1, 1), take(allReaders, 2), take(-1, 1)}},
		"writer in a downgrade": {rwModel, []op{take(allReaders, 1), take(1-allReaders, 1), take(allReaders, 2)}},
		"too many permits":      {semaphoreModel, []op{take(2, 1), take(3, 2)}},
	} {
		h := newHistory()
		for i, o := range tt.ops {
			h.add(0, int64(2*i), o, int64(2*i+1))
		}
		if porcupine.CheckOperations(tt.m.checker(), h.ops) {
			t.Errorf("%s passes", name)
		}
	}
}
