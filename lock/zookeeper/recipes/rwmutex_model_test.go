package recipes

import (
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// history is what several callers did, and when, for a checker of
// linearizability: each operation is to have happened at one moment between its
// call and its return, and those moments are to make sense.
type history struct {
	began time.Time

	mu  sync.Mutex
	ops []porcupine.Operation
}

func newHistory() *history { return &history{began: time.Now()} }

func (h *history) now() int64 { return int64(time.Since(h.began)) }

// add notes an operation that returns now.
func (h *history) add(who int, call int64, input, output any) {
	ret := h.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: who, Input: input, Call: call, Output: output, Return: ret})
}

// want checks the history against a model.
func (h *history) want(t *testing.T, m porcupine.Model) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	if !porcupine.CheckOperations(m, h.ops) {
		t.Errorf("no order explains the history of %d operations", len(h.ops))
		for _, op := range h.ops {
			t.Logf("%3d: %10d to %10d: %v = %v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
		}
	}
	t.Logf("%d operations", len(h.ops))
}

// Operations on a read-write lock. None of those that did not succeed is in a
// history: it is to have no effect.
type rwOp string

const (
	takeRead    rwOp = "take read"
	takeWrite   rwOp = "take write"
	dropRead    rwOp = "drop read"
	dropWrite   rwOp = "drop write"
	writeToRead rwOp = "downgrade"
)

// oneWriter is a state of rwModel; the others are the number of readers.
const oneWriter = -1

// rwModel is a lock that either any number of readers has, or one writer.
var rwModel = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, input, _ any) (bool, any) {
		n := state.(int)
		switch input.(rwOp) {
		case takeRead:
			return n >= 0, n + 1
		case takeWrite:
			return n == 0, oneWriter
		case dropRead:
			return n > 0, n - 1
		case dropWrite:
			return n == oneWriter, 0
		case writeToRead:
			return n == oneWriter, 1
		}
		return false, nil
	},
}

// registerOp is a read, or a write, of a register that the lock guards. The
// register is not atomic by itself: its halves change one after the other.
type registerOp struct {
	write bool
	value int64
}

var registerModel = porcupine.Model{
	Init: func() any { return int64(0) },
	Step: func(state, input, output any) (bool, any) {
		if op := input.(registerOp); op.write {
			return true, op.value
		}
		return state == output, state
	},
}

func TestModelsRefuseNonsense(t *testing.T) {
	t.Parallel()
	at := func(call, ret int64, input, output any) porcupine.Operation {
		return porcupine.Operation{Call: call, Return: ret, Input: input, Output: output}
	}
	for name, tt := range map[string]struct {
		m   porcupine.Model
		ops []porcupine.Operation
	}{
		"two writers":           {rwModel, []porcupine.Operation{at(0, 1, takeWrite, nil), at(2, 3, takeWrite, nil), at(4, 5, dropWrite, nil), at(6, 7, dropWrite, nil)}},
		"reader beside writer":  {rwModel, []porcupine.Operation{at(0, 1, takeRead, nil), at(2, 3, takeWrite, nil), at(4, 5, dropRead, nil), at(6, 7, dropWrite, nil)}},
		"writer in a downgrade": {rwModel, []porcupine.Operation{at(0, 1, takeWrite, nil), at(2, 3, writeToRead, nil), at(4, 5, takeWrite, nil), at(6, 7, dropWrite, nil)}},
		"torn read":             {registerModel, []porcupine.Operation{at(0, 1, registerOp{true, 1}, nil), at(2, 3, registerOp{}, int64(2))}},
		"stale read":            {registerModel, []porcupine.Operation{at(0, 1, registerOp{true, 1}, nil), at(2, 3, registerOp{}, int64(0))}},
		"too many permits":      {semModel(2), []porcupine.Operation{at(0, 1, 1, nil), at(2, 3, 2, nil)}},
	} {
		if porcupine.CheckOperations(tt.m, tt.ops) {
			t.Errorf("%s passes", name)
		}
	}
}
