package simulate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
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
	mutex, rw := recipes.MustNewMutex(p.client, "/mutex"), recipes.MustNewRWMutex(p.client, "/rwmutex")
	semaphore := recipes.MustNewSemaphore(p.client, "/semaphore", permits)
	election := recipes.MustNewElection(p.client, "/election", p.host)
	reentrant, register := recipes.MustNewReentrantMutex(p.client, "/mutex"), recipes.MustNewRegister(p.client, "/register")
	q := queue.MustNew(p.client, "/queue")
	plain := &overseen{Locker: p.client.Locker(), p: p}
	one := func(a func(context.Context, int) (*recipes.Lease, error)) func(context.Context) (*recipes.Lease, error) {
		return func(ctx context.Context) (*recipes.Lease, error) { return a(ctx, 1) }
	}
	uses := []func(){
		func() { p.usePlain(ctx, rnd, plain) },
		func() { p.usePlain(ctx, rnd, plain) },
		func() { use(ctx, p, rnd, "mutex", exclusive, mutex.Acquire) },
		func() { use(ctx, p, rnd, "mutex", exclusive, mutex.TryAcquire) },
		func() { use(ctx, p, rnd, "mutex", exclusive, twice(reentrant)) },
		func() { p.count(ctx, register) },
		func() { use(ctx, p, rnd, "rwmutex", exclusive, rw.AcquireWrite) },
		func() { use(ctx, p, rnd, "rwmutex", shared, rw.AcquireRead) },
		func() { use(ctx, p, rnd, "semaphore", permits, one(semaphore.Acquire)) },
		func() { use(ctx, p, rnd, "semaphore", permits, one(semaphore.TryAcquire)) },
		func() { use(ctx, p, rnd, "election", exclusive, election.Campaign) },
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
func use[L driver.Lease](ctx context.Context, p *process, rnd *rand.Rand, lock string, holders int, acquire func(context.Context) (L, error)) {
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

// twice takes a reentrant mutex twice for one owner, and gives one of the two holds back.
func twice(m *recipes.ReentrantMutex) func(context.Context) (*recipes.Hold, error) {
	return func(ctx context.Context) (*recipes.Hold, error) {
		owner := new(byte)
		first, err := m.Acquire(ctx, owner)
		if err != nil {
			return nil, err
		}
		defer func() { _ = first.Release(context.WithoutCancel(ctx)) }()
		return m.Acquire(ctx, owner)
	}
}

// sum is what was added to the register.
type sum struct {
	mu           sync.Mutex
	added, maybe int // acknowledged additions, and those in doubt
}

// count adds one to the register.
func (p *process) count(ctx context.Context, r *recipes.Register) {
	call, cancel := context.WithTimeout(ctx, p.w.plan.Session)
	defer cancel()
	data, version, err := r.Load(call)
	if err != nil {
		return
	}
	n, _ := strconv.Atoi(string(data)) // "" is 0
	err = r.Save(call, []byte(strconv.Itoa(n+1)), version)
	s := &p.w.sum
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.added++
	case !errors.Is(err, recipes.ErrConflict):
		s.maybe++
	}
}

// usePlain is use with a lock of a key.
func (p *process) usePlain(ctx context.Context, rnd *rand.Rand, l driver.Locker) {
	patience := p.w.plan.Session/10 + time.Duration(rnd.Int64N(int64(p.w.plan.Patience)))
	hold := time.Duration(rnd.Int64N(int64(p.w.plan.Hold)))
	call, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	lease, err := driver.Acquire(call, l, driver.LockRequest{KeyID: idem.NewKeyID(scope, "plain"), Nonce: driver.NewNonce()})
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

// drain consumes what the queue still has, and judges the queue and the register.
func (w *world) drain() {
	p := w.process(0)
	data, _, err := recipes.MustNewRegister(p.client, "/register").Load(p.ctx)
	n, _ := strconv.Atoi(string(data))
	if s := &w.sum; err != nil || n < s.added || n > s.added+s.maybe {
		w.failf("the register is %d, %v after %d additions and perhaps %d more", n, err, s.added, s.maybe)
	}
	q := queue.MustNew(p.client, "/queue")
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
