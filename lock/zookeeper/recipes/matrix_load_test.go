package recipes

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/anishathalye/porcupine"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
)

// load is one kind of lock in use by workers of several clients.
type load struct {
	*history
	t     testing.TB
	name  string
	model porcupine.Model
	done  atomic.Int64 // grants

	mu      sync.Mutex
	holder  driver.Lease // of what excludes anyChange
	leaving bool         // it has been told to go
}

// enter says that a lease has been granted that excludes all others.
func (w *load) enter(l driver.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holder != nil && !w.leaving && w.holder.Err() == nil {
		w.t.Errorf("%s: %v is granted while %v is believed in", w.name, l.Fence(), w.holder.Fence())
	}
	if w.holder != nil && !w.holder.Fence().Before(l.Fence()) {
		w.t.Errorf("%s: fence %v after %v", w.name, l.Fence(), w.holder.Fence())
	}
	w.holder, w.leaving = l, false
}

func (w *load) leave(l driver.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holder == l {
		w.leaving = true
	}
}

// use takes a lock and gives it back, and notes both. When the lease is lost
// nobody can tell when the lock has gone, or will.
func (w *load) use(ctx context.Context, c *zookeeper.Client, who int, f func(ctx context.Context) (driver.Lease, error), take, drop any, alone bool) {
	session, since := recipetest.SessionOf(c), w.now()
	l, err := f(ctx)
	if err != nil {
		if ctx.Err() == nil && !errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrLeaseLost) {
			w.t.Errorf("%s = %v", w.name, err)
		}
		return
	}
	w.add(who, since, take, nil)
	if alone {
		w.enter(l)
	}
	w.done.Add(1)
	_, _ = l.Check(ctx) // so that it takes a while
	if alone {
		w.leave(l)
	}
	call := w.now()
	err = l.Release(bounded(w.t))
	if err == nil && session != nil && session == recipetest.SessionOf(c) {
		w.add(who, call, drop, nil)
		return
	}
	w.history.mu.Lock()
	defer w.history.mu.Unlock()
	w.ops = append(w.ops, porcupine.Operation{ClientId: who, Input: drop, Call: since, Return: 1 << 62})
}

// Everything is in use while the leader is killed and comes back, and while a
// follower stands still (SIGSTOP). Everything goes on after each, and nobody ever
// has what somebody else believes in.
func TestMatrixEnsembleUnderLoad(t *testing.T) {
	t.Parallel()
	e := testserver.StartEnsemble(t, 3)
	cfg := config(t, e.Hosts()...)
	cfg.Credentials = []zookeeper.Credential{mine}
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	var loads []*load
	start := func(name string, model porcupine.Model, step func(w *load, c *zookeeper.Client, who int, rng *rand.Rand)) {
		w := &load{history: newHistory(), t: t, name: name, model: model}
		loads = append(loads, w)
		for who := range 3 {
			c := open(t, cfg)
			wg.Go(func() {
				for rng := rand.New(rand.NewPCG(uint64(who), 13)); ctx.Err() == nil; {
					step(w, c, who, rng)
				}
			})
		}
	}
	last := open(t, cfg)
	for i, f := range everyAsk(last) {
		if f.name == "delivery" {
			continue // see below
		}
		start(f.name, rwModel, func(w *load, c *zookeeper.Client, who int, _ *rand.Rand) {
			w.use(ctx, c, who, everyAsk(c)[i].ask, takeWrite, dropWrite, true)
		})
	}
	start("readers and writers", rwModel, func(w *load, c *zookeeper.Client, who int, rng *rand.Rand) {
		if m := MustNewRWMutex(c, "/rw"); rng.IntN(3) > 0 {
			w.use(ctx, c, who, plain(m.AcquireRead), takeRead, dropRead, false)
		} else {
			w.use(ctx, c, who, plain(m.AcquireWrite), takeWrite, dropWrite, false)
		}
	})
	start("permits", semModel(4), func(w *load, c *zookeeper.Client, who int, rng *rand.Rand) {
		n := 1 + rng.IntN(3)
		w.use(ctx, c, who, plain(semAsk(c, 4, n)), n, -n, false)
	})
	books := newBooks()
	start("queue", porcupine.Model{}, func(w *load, c *zookeeper.Client, who int, rng *rand.Rand) {
		if books.trade(ctx, w, queue.MustNew(c, "/q"), rng) {
			w.done.Add(1)
		}
	})

	goesOn := func(what string) {
		t.Helper()
		for _, w := range loads {
			before := w.done.Load()
			until(t, w.name+" goes on "+what, func() bool { return w.done.Load() >= before+5 })
		}
	}
	goesOn("at first")
	leader := e.Leader()
	leader.Kill()
	goesOn("without the leader")
	leader.Restart()
	goesOn("with the leader back")
	follower := e.Followers()[0]
	follower.Pause()
	goesOn("beside a paused follower")
	follower.Resume()
	goesOn("with the follower back")
	stop()
	wg.Wait()
	for _, w := range loads {
		if w.name != "queue" {
			w.want(t, w.model)
		}
	}
	books.close(t, queue.MustNew(last, "/q"))
}
