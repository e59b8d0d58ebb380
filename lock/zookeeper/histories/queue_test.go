package histories_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	queue "github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"

	"github.com/anishathalye/porcupine"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// The histories are the proof of what a queue promises to callers that use it at the same time.
// Callers of three clients offer, poll, receive, acknowledge and give back elements, each through a
// Queue of its own, while one of the clients loses replies, requests, connections and its session.
// Afterwards some order of the calls has to explain what they returned.

// did is a call and what it returned. An operation in doubt may have happened or not.
type did struct {
	what     string // "offer", "poll", "receive", "release" or "ack"
	elements []string
	attempt  int
	doubt    bool
}

// fifo is a strict queue. Its state has the elements in order, each followed by a comma. A poll
// without an element found the queue empty.
var fifo = porcupine.NondeterministicModel{
	Init: func() []any { return []any{""} },
	Step: func(state, input, _ any) []any {
		queue, d := state.(string), input.(did)
		all := strings.Join(d.elements, ",") + ","
		var after []any
		if d.doubt {
			after = append(after, queue)
		}
		switch {
		case d.what == "offer":
			return append(after, queue+all)
		case len(d.elements) == 0 && queue == "":
			return append(after, queue)
		case len(d.elements) > 0 && strings.HasPrefix(queue, all):
			return append(after, queue[len(all):])
		}
		return after
	},
}

// life is what may happen to one element. Its attempt is 0 before the first delivery. A delivery
// whose consumer gave up may be counted too.
type life struct {
	there   bool
	attempt int
	locked  bool
}

// lives follows each element for itself.
var lives = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		of := map[string]int{}
		for _, op := range history {
			for _, e := range op.Input.(did).elements {
				i, known := of[e]
				if !known {
					i = len(parts)
					of[e], parts = i, append(parts, nil)
				}
				parts[i] = append(parts[i], op)
			}
		}
		return parts
	},
	Init: func() []any { return []any{life{}} },
	Step: func(state, input, _ any) []any {
		l, d := state.(life), input.(did)
		var after []any
		if d.doubt {
			after = append(after, l)
		}
		switch mine := l.there && l.locked && l.attempt == d.attempt; {
		case d.what == "offer" && !l.there && l.attempt == 0:
			after = append(after, life{there: true})
		case d.what == "poll" && l.there && !l.locked:
			after = append(after, life{attempt: math.MaxInt32})
		case d.what == "receive" && l.there && !l.locked && d.attempt > l.attempt:
			after = append(after, life{there: true, attempt: d.attempt, locked: true})
		case d.what == "release" && mine:
			after = append(after, life{there: true, attempt: d.attempt})
		case d.what == "ack" && mine:
			after = append(after, life{attempt: math.MaxInt32})
		}
		return after
	},
}

// historian notes what callers did.
type historian struct {
	testing.TB
	began time.Time

	mu  sync.Mutex
	ops []porcupine.Operation
}

func (h *historian) now() int64 { return int64(time.Since(h.began)) }

func (h *historian) add(who int, call int64, d did) {
	returned := h.now()
	if d.doubt {
		returned = forever
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: who, Input: d, Call: call, Return: returned})
}

// doubtful notes the elements of an error, and checks that it is one that the queue may return.
func (h *historian) doubtful(who int, call int64, d did, err error) {
	doubt, ok := errors.AsType[*queue.InDoubtError](err)
	switch {
	case ok && d.what == "ack":
		d.doubt = true
		h.add(who, call, d)
	case ok:
		d.doubt, d.elements = true, nil
		for _, e := range doubt.Elements {
			d.elements = append(d.elements, string(e.Data))
		}
		h.add(who, call, d)
	case !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrLeaseLost) && !errors.Is(err, queue.ErrEmpty):
		h.Errorf("%s = %v", d.what, err)
	}
}

// offer appends one element or a batch.
func (h *historian) offer(who, n int, q *queue.Queue, rng *rand.Rand) {
	d, data := did{what: "offer"}, [][]byte(nil)
	for i := range 1 + rng.IntN(2) {
		d.elements = append(d.elements, fmt.Sprintf("%d.%d.%d", who, n, i))
		data = append(data, []byte(d.elements[i]))
	}
	call := h.now()
	if _, err := q.OfferAll(bounded(h), data); err != nil {
		h.doubtful(who, call, d, err)
		return
	}
	h.add(who, call, d)
}

// poll removes an element, or notes that there was none.
func (h *historian) poll(who int, q *queue.Queue) {
	call, d := h.now(), did{what: "poll"}
	e, ok, err := q.Poll(bounded(h))
	if err != nil {
		h.doubtful(who, call, d, err)
		return
	}
	if ok {
		d.elements = []string{string(e.Data)}
	}
	h.add(who, call, d)
}

// receive locks an element, and acknowledges it or gives it back. If the lock was lost, nobody can
// tell when it went.
func (h *historian) receive(who int, c *zookeeper.Client, q *queue.Queue, rng *rand.Rand, strike func()) {
	ctx, cancel := context.WithCancel(bounded(h))
	defer cancel()
	if rng.IntN(5) == 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rng.IntN(10))*time.Millisecond)
		defer cancel()
	}
	since, in := h.now(), sessionOf(c)
	d, err := q.TryReceive(ctx)
	if err != nil {
		if ctx.Err() == nil {
			h.doubtful(who, since, did{what: "receive"}, err)
		}
		return
	}
	has := did{what: "receive", elements: []string{string(d.Data)}, attempt: d.Attempt}
	h.add(who, since, has)
	strike()
	call := h.now()
	has.what = "release"
	if rng.IntN(3) > 0 {
		has.what = "ack"
		err := d.Ack(bounded(h))
		if err == nil {
			h.add(who, call, has)
			return
		}
		h.doubtful(who, call, has, err)
		has.what, has.doubt, call = "release", true, since
	}
	if err := d.Release(bounded(h)); err != nil || !still(c, in) {
		has.doubt, call = true, since
	}
	h.add(who, call, has)
}

func TestQueueHistories(t *testing.T) {
	t.Parallel()
	const callers, rounds = 6, 20
	for name, deliveries := range map[string]bool{"first in, first out": false, "deliveries": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, h := newRig(t, 30*time.Second), &historian{TB: t, began: time.Now()}
			straight := r.Config
			straight.Servers, straight.SessionTimeout = testserver.SharedZooKeeper(t), time.Minute
			clients := []*zookeeper.Client{r.Client, r.Other, open(t, straight)}
			writes := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains("/q/"))
			var kills, losses atomic.Int64
			kills.Store(2)
			losses.Store(9)
			var wg sync.WaitGroup
			for i := range callers {
				rng := rand.New(rand.NewPCG(uint64(i), 7))
				strike := func() {
					switch n := rng.IntN(30); {
					case n == 0 && kills.Add(-1) >= 0:
						id, _ := r.Proxy.Session()
						_ = testserver.KillSession(straight.Servers[0], id, password(r.Proxy))
					case n%5 == 1 && losses.Add(-1) >= 0:
						[]func(){
							r.Proxy.Cut, func() { r.Proxy.DropNextReply(writes) }, func() { r.Proxy.DropNextRequest(writes) },
						}[rng.IntN(3)]()
					}
				}
				q := queue.MustNew(clients[i%3], "/q")
				wg.Go(func() {
					for n := range rounds {
						strike()
						switch k := rng.IntN(4); {
						case k < 2:
							h.offer(i, n, q, rng)
						case k == 2 || !deliveries:
							h.poll(i, q)
						default:
							h.receive(i, clients[i%3], q, rng, strike)
						}
					}
				})
			}
			wg.Wait()
			r.Proxy.Restore()
			// What is left is polled, so a lost element shows.
			rest := queue.MustNew(r.Other, "/q")
			until(t, "the queue is worked off", func() bool {
				h.poll(callers, rest)
				n, err := rest.Len(bounded(t))
				return err == nil && n == 0
			})
			h.want(deliveries)
		})
	}
}

// want checks the history. In that of deliveries, each element that was offered without a doubt has
// gone.
func (h *historian) want(deliveries bool) {
	h.Helper()
	model := fifo.ToModel()
	if deliveries {
		model = lives.ToModel()
		for _, op := range h.ops {
			d := op.Input.(did)
			if d.what != "offer" || d.doubt {
				continue
			}
			for _, e := range d.elements {
				if !slices.ContainsFunc(h.ops, func(o porcupine.Operation) bool {
					d := o.Input.(did)
					return (d.what == "poll" || d.what == "ack") && slices.Contains(d.elements, e)
				}) {
					h.Errorf("element %s was lost", e)
				}
			}
		}
	}
	if got := porcupine.CheckOperationsTimeout(model, h.ops, patience); got != porcupine.Ok {
		h.Errorf("the history of %d calls is %v as that of a queue, want %v", len(h.ops), got, porcupine.Ok)
		for _, op := range h.ops {
			h.Logf("%d: %d to %d: %+v", op.ClientId, op.Call, op.Return, op.Input)
		}
	}
}
