package queue

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// queueCall is a call of a first-in-first-out queue: an offer of value, or a
// poll.
type queueCall struct {
	offer bool
	value string
}

// fifo is the model: its state is what is in the queue, in order, each element
// followed by a comma; its outputs are what a poll found, "" for nothing.
var fifo = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		queue, call, found := state.(string), input.(queueCall), output.(string)
		switch {
		case call.offer:
			return true, queue + call.value + ","
		case found == "":
			return queue == "", queue
		case len(queue) > len(found) && queue[:len(found)+1] == found+",":
			return true, queue[len(found)+1:]
		}
		return false, queue
	},
	DescribeOperation: func(input, output any) string {
		if call := input.(queueCall); call.offer {
			return "offer " + call.value
		}
		return fmt.Sprintf("poll: %q", output)
	},
}

// Offers and polls of several clients at the same time are a strict queue.
func TestQueueIsLinearizable(t *testing.T) {
	t.Parallel()
	const callers, calls = 2, 12
	var mu sync.Mutex
	var history []porcupine.Operation
	began := time.Now()
	var wg sync.WaitGroup
	for i, c := range crowd(t, 3) {
		q := MustNew(c, "/q")
		for j := range callers {
			wg.Go(func() {
				for k := range calls {
					op := porcupine.Operation{ClientId: i*callers + j, Output: ""}
					in := queueCall{offer: k%2 == j, value: fmt.Sprintf("%d.%d.%d", i, j, k)}
					op.Input, op.Call = in, time.Since(began).Nanoseconds()
					var err error
					if in.offer {
						_, err = q.Offer(bounded(t), []byte(in.value))
					} else {
						var e Element
						e, _, err = q.Poll(bounded(t))
						op.Output = string(e.Data)
					}
					op.Return = time.Since(began).Nanoseconds()
					if err != nil {
						t.Errorf("%v = %v", in, err)
						return
					}
					mu.Lock()
					history = append(history, op)
					mu.Unlock()
				}
			})
		}
	}
	wg.Wait()
	if got := porcupine.CheckOperationsTimeout(fifo, history, patience); got != porcupine.Ok {
		t.Errorf("the history is %v as that of a queue, want %v", got, porcupine.Ok)
		for _, op := range history {
			t.Logf("%d: %d to %d: %s", op.ClientId, op.Call, op.Return, fifo.DescribeOperation(op.Input, op.Output))
		}
	}
}
