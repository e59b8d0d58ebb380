package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
)

// permits is how many holders a semaphore has at once.
const permits = 2

// useRecipes takes and gives back locks, and passes elements through a queue, until the
// faults stop or ctx ends.
func (p *process) useRecipes(ctx context.Context) {
	w, rnd := p.w, simnet.Random(p.w.plan.Seed, "recipes "+p.host)
	mutex, rw := recipes.NewMutex(p.client, "/mutex"), recipes.NewRWMutex(p.client, "/rwmutex")
	semaphore := recipes.NewSemaphore(p.client, "/semaphore", permits)
	election := recipes.NewElection(p.client, "/election", p.host)
	q := queue.New(p.client, "/queue")
	plain := &overseen{Locker: p.client.Locker(), p: p}
	type acquire = func(context.Context) (*recipes.Lease, error)
	one := func(a func(context.Context, int) (*recipes.Lease, error)) acquire {
		return func(ctx context.Context) (*recipes.Lease, error) { return a(ctx, 1) }
	}
	uses := []func(){
		func() { p.usePlain(ctx, rnd, plain) },
		func() { p.usePlain(ctx, rnd, plain) },
		func() { p.use(ctx, rnd, "mutex", exclusive, mutex.Acquire) },
		func() { p.use(ctx, rnd, "mutex", exclusive, mutex.TryAcquire) },
		func() { p.use(ctx, rnd, "rwmutex", exclusive, rw.AcquireWrite) },
		func() { p.use(ctx, rnd, "rwmutex", shared, rw.AcquireRead) },
		func() { p.use(ctx, rnd, "semaphore", permits, one(semaphore.Acquire)) },
		func() { p.use(ctx, rnd, "semaphore", permits, one(semaphore.TryAcquire)) },
		func() { p.use(ctx, rnd, "election", exclusive, election.Campaign) },
		func() { p.offer(ctx, q) },
		func() { p.receive(ctx, rnd, q) },
	}
	for ctx.Err() == nil && time.Since(w.start) < w.plan.Storm {
		uses[rnd.IntN(len(uses))]()
		select {
		case <-time.After(time.Duration(rnd.Int64N(int64(w.plan.Busy)))):
		case <-ctx.Done():
		}
	}
}

// use takes a lock, holds it for a while, and gives it back.
func (p *process) use(ctx context.Context, rnd *rand.Rand, lock string, holders int, acquire func(context.Context) (*recipes.Lease, error)) {
	patience := p.w.plan.Session/10 + time.Duration(rnd.Int64N(int64(p.w.plan.Patience)))
	hold := time.Duration(rnd.Int64N(int64(p.w.plan.Hold)))
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	l, err := acquire(call)
	if err != nil {
		return
	}
	forget := p.w.leases.granted(p, lock, l, holders)
	select {
	case <-time.After(hold):
	case <-ctx.Done():
	}
	forget()
	call, cancel = context.WithTimeout(context.WithoutCancel(ctx), p.w.plan.Session)
	defer cancel()
	_ = l.Release(call)
}

// usePlain is use with a lock of a key.
func (p *process) usePlain(ctx context.Context, rnd *rand.Rand, l idem.Locker) {
	patience := p.w.plan.Session/10 + time.Duration(rnd.Int64N(int64(p.w.plan.Patience)))
	hold := time.Duration(rnd.Int64N(int64(p.w.plan.Hold)))
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lease, err := idem.Acquire(call, l, idem.LockRequest{KeyID: idem.NewKeyID(scope, "plain"), Nonce: idem.NewNonce()})
	if err != nil {
		return
	}
	select {
	case <-time.After(hold):
	case <-ctx.Done():
	}
	lease.ReleaseInBackground()
}

// elements is what the queue was told, and what came out of it.
type elements struct {
	mu      sync.Mutex
	next    int
	offered map[string]bool // acknowledged
	acked   map[string]int  // how often consumers got the acknowledgement that it is removed
	maybe   map[string]bool // an acknowledgement was in doubt
}

// offer appends an element.
func (p *process) offer(ctx context.Context, q *queue.Queue) {
	es := &p.w.elements
	es.mu.Lock()
	es.next++
	name := fmt.Sprint("element ", es.next)
	es.mu.Unlock()
	call, cancel := context.WithTimeout(ctx, p.w.plan.Session)
	defer cancel()
	if _, err := q.Offer(call, []byte(name)); err == nil {
		es.mu.Lock()
		defer es.mu.Unlock()
		es.offered[name] = true
	}
}

// receive consumes an element. It reports whether there was one.
func (p *process) receive(ctx context.Context, rnd *rand.Rand, q *queue.Queue) bool {
	call, cancel := context.WithTimeout(ctx, p.w.plan.Session)
	defer cancel()
	d, err := q.TryReceive(call)
	if err != nil {
		return false
	}
	forget := p.w.leases.granted(p, "element "+d.ID, d, exclusive)
	if rnd != nil {
		select {
		case <-time.After(time.Duration(rnd.Int64N(int64(p.w.plan.Session / 2)))):
		case <-ctx.Done():
		}
	}
	forget()
	call, cancel = context.WithTimeout(context.WithoutCancel(ctx), p.w.plan.Session)
	defer cancel()
	err = d.Ack(call)
	es := &p.w.elements
	es.mu.Lock()
	defer es.mu.Unlock()
	if err == nil {
		es.acked[string(d.Data)]++
	} else {
		es.maybe[string(d.Data)] = true
	}
	return true
}

// drain consumes what the queue still has, and judges the queue.
func (w *world) drain() {
	p := w.process(0)
	q := queue.New(p.client, "/queue")
	for p.receive(p.ctx, nil, q) {
	}
	es := &w.elements
	for name := range es.offered {
		if es.acked[name] == 0 && !es.maybe[name] {
			w.failf("%s was offered, and nobody got it", name)
		}
	}
	for name, n := range es.acked {
		if n > 1 {
			w.failf("%s was removed %d times", name, n)
		}
	}
}
