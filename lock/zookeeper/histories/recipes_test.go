package histories_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
	recipes "github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// The histories are the proof of what the recipes have in common. Callers of several clients take
// a lock and give it back while replies and requests are lost, connections break, sessions are
// killed and callers give up. Each grant and each release is noted with its time. Afterwards some
// order of them has to explain what the callers saw (model_test.go), and nothing may be left
// behind. A caller that is patient has to get the lock, so a missed wake-up fails the test.

// recipe is a way to use a lock in a history. use is called once for each client.
type recipe struct {
	name  string
	model model
	use   func(t testing.TB, c *zookeeper.Client) func(p *player)
}

const historyPermits = 4

var all = []recipe{
	{"mutex", exclusiveModel, func(t testing.TB, c *zookeeper.Client) func(p *player) {
		told := new(zktest.Recorder[recipes.Event])
		t.Cleanup(func() {
			_ = c.Close(context.WithoutCancel(bounded(t))) // waits for the listener
			wantPaired(t, told.Events())
		})
		m := recipes.MustNewMutex(c, linePath, recipes.WithListener(told.Take))
		return func(p *player) {
			p.hold(p.one(m.Acquire, m.TryAcquire), 1, nil)
		}
	}},
	{"reentrant mutex", reentrantModel, func(_ testing.TB, c *zookeeper.Client) func(p *player) {
		m := recipes.MustNewReentrantMutex(c, linePath)
		return func(p *player) {
			owner := p.rng.IntN(2) // other callers of this client have the same names
			p.owner = owner + 2*p.client
			taken := func(f func(context.Context, any) (*recipes.Hold, error)) locking {
				return plain(func(ctx context.Context) (*recipes.Hold, error) { return f(ctx, owner) })
			}
			p.hold(taken(m.Acquire), 1, func(outer driver.Lease) {
				if inner := p.take(taken(m.TryAcquire), 1); inner != nil {
					p.drop(inner)
				} else if outer.Err() == nil {
					p.Error("the owner was refused a second hold")
				}
			})
		}
	}},
	{"read-write mutex", rwModel, func(_ testing.TB, c *zookeeper.Client) func(p *player) {
		m := recipes.MustNewRWMutex(c, linePath)
		return func(p *player) {
			if p.rng.IntN(2) == 0 {
				p.hold(p.one(m.AcquireRead, m.TryAcquireRead), 1, nil)
				return
			}
			l := p.take(p.one(m.AcquireWrite, m.TryAcquireWrite), allReaders)
			if l == nil {
				return
			}
			p.strike()
			if p.rng.IntN(2) == 0 {
				l = p.downgrade(m, l)
			}
			if l != nil {
				p.drop(l)
			}
		}
	}},
	{"semaphore", semaphoreModel, func(_ testing.TB, c *zookeeper.Client) func(p *player) {
		sem := recipes.MustNewSemaphore(c, linePath, historyPermits)
		return func(p *player) {
			n := 1 + p.rng.IntN(3)
			of := func(f func(context.Context, int) (*recipes.Lease, error)) ask {
				return func(ctx context.Context) (*recipes.Lease, error) { return f(ctx, n) }
			}
			p.hold(p.one(of(sem.Acquire), of(sem.TryAcquire)), n, nil)
		}
	}},
	{"election", exclusiveModel, func(_ testing.TB, c *zookeeper.Client) func(p *player) {
		e := recipes.MustNewElection(c, linePath, "candidate")
		return func(p *player) {
			if p.rng.IntN(2) == 0 {
				p.hold(p.one(e.Campaign, e.Campaign), 1, nil)
				return
			}
			ctx, cancel := p.patience()
			defer cancel()
			since, led := p.h.now(), grant{in: sessionOf(c)}
			err := e.RunAsLeader(ctx, func(_ context.Context, fence driver.Fence) error {
				led = p.granted(led.in, since, 1, fence)
				p.strike()
				led.left = p.h.now()
				return nil
			})
			if led.op.n == 0 {
				p.refused(ctx, err)
				return
			}
			led.lost = err != nil || !still(c, led.in)
			p.released(led, led.left)
		}
	}},
}

// player is one caller in a history.
type player struct {
	testing.TB
	c      *zookeeper.Client
	client int // which one
	who    int
	owner  int
	h      *history
	rng    *rand.Rand
	strike func()
	grants *atomic.Int64
	held   map[driver.Lease]grant
}

// grant is a lock that a player has.
type grant struct {
	op    op
	in    *held.Table // the session when it was asked for
	since int64       // when it was asked for
	left  int64       // when a leader's function returned
	lost  bool        // nobody can tell when it went, or will go
}

// locking is a call for any lease.
type locking func(ctx context.Context) (driver.Lease, error)

// ask is a call for a lock that waits.
type ask func(ctx context.Context) (*recipes.Lease, error)

// plain turns a nil lease into no lease.
func plain[L interface {
	comparable
	driver.Lease
}](f func(ctx context.Context) (L, error)) locking {
	return func(ctx context.Context) (driver.Lease, error) {
		var none L
		l, err := f(ctx)
		if l == none {
			return nil, err
		}
		return l, err
	}
}

// one of the calls, the waiting one more often.
func (p *player) one(wait, try ask) locking {
	if p.rng.IntN(4) == 0 {
		return plain(try)
	}
	return plain(wait)
}

// patience is a context that ends soon, now and then.
func (p *player) patience() (context.Context, context.CancelFunc) {
	if p.rng.IntN(4) == 0 {
		return context.WithTimeout(bounded(p), time.Duration(p.rng.IntN(30))*time.Millisecond)
	}
	return context.WithCancel(context.Background())
}

// hold takes a lock, does something with it, and gives it back.
func (p *player) hold(f locking, n int, inside func(driver.Lease)) {
	l := p.take(f, n)
	if l == nil {
		return
	}
	p.strike()
	if inside != nil {
		inside(l)
	}
	p.drop(l)
}

// take asks for a lock and notes it if it is granted.
func (p *player) take(f locking, n int) driver.Lease {
	ctx, cancel := p.patience()
	defer cancel()
	since, in := p.h.now(), sessionOf(p.c)
	l, err := f(ctx)
	if err != nil {
		p.refused(ctx, err)
		return nil
	}
	p.held[l] = p.granted(in, since, n, l.Fence())
	return l
}

func (p *player) granted(in *held.Table, since int64, n int, fence driver.Fence) grant {
	g := grant{op: op{owner: p.owner, n: n, fence: fence.Token}, in: in, since: since}
	p.h.add(p.who, since, g.op, 0)
	p.grants.Add(1)
	return g
}

// refused checks why a caller has no lock.
func (p *player) refused(ctx context.Context, err error) {
	if ctx.Err() == nil && !errors.Is(err, driver.ErrLocked) && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrLeaseLost) {
		p.Errorf("acquire = %v", err)
	}
}

// drop gives a lock back and notes it.
func (p *player) drop(l driver.Lease) {
	g, call := p.held[l], p.h.now()
	delete(p.held, l)
	if p.rng.IntN(3) == 0 {
		l.ReleaseInBackground()
	}
	err := l.Release(bounded(p))
	g.lost = err != nil || !still(p.c, g.in)
	p.released(g, call)
}

func (p *player) released(g grant, call int64) {
	until := int64(0)
	if g.lost {
		call, until = g.since, forever
	}
	back := g.op
	back.n = -back.n
	p.h.add(p.who, call, back, until)
}

// downgrade makes a writer a reader. If that fails, it has neither lock any more.
func (p *player) downgrade(m *recipes.RWMutex, l driver.Lease) driver.Lease {
	g, call := p.held[l], p.h.now()
	ctx, cancel := p.patience()
	defer cancel()
	read, err := m.Downgrade(ctx, l.(*recipes.Lease))
	if err != nil {
		await(p, "the end of the old lock", l.Done())
		delete(p.held, l)
		g.lost = true
		p.released(g, call)
		return nil
	}
	delete(p.held, l)
	if read.Fence() != l.Fence() {
		p.Errorf("fence %v after a downgrade, want the writer's %v", read.Fence(), l.Fence())
	}
	p.h.add(p.who, call, op{n: 1 - allReaders, fence: g.op.fence}, 0)
	g.op.n, g.since = 1, call
	p.held[read] = g
	return read
}

// TestHistories has a history of each recipe while the client of every third caller is behind a
// proxy that loses replies and requests, breaks connections and has its session killed.
func TestHistories(t *testing.T) {
	t.Parallel()
	const callers, rounds = 9, 15
	for _, of := range all {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			r, h := newRig(t, 0), newHistory()
			clients := []*zookeeper.Client{r.Client, r.Other, open(t, r.straight())}
			var uses []func(p *player)
			for _, c := range clients {
				uses = append(uses, of.use(t, c))
			}
			var kills, losses, grants atomic.Int64
			kills.Store(3)
			losses.Store(9)
			faults := []func(){
				r.Proxy.Cut,
				func() { r.Proxy.DropNextReply(r.onLine()) },
				func() { r.Proxy.DropNextRequest(r.onLine()) },
			}
			var wg sync.WaitGroup
			for i := range callers {
				rng := rand.New(rand.NewPCG(uint64(i), 11))
				p := &player{
					TB: t, c: clients[i%3], client: i % 3, who: i, h: h, rng: rng, grants: &grants, held: map[driver.Lease]grant{},
					strike: func() {
						switch {
						case rng.IntN(12) == 0 && kills.Add(-1) >= 0:
							r.kill()
						case rng.IntN(6) == 0 && losses.Add(-1) >= 0:
							faults[rng.IntN(len(faults))]()
						}
					},
				}
				wg.Go(func() {
					for range rounds {
						uses[i%3](p)
					}
				})
			}
			ended := make(chan struct{})
			go func() { wg.Wait(); close(ended) }()
			await(t, "the end of the history", ended)
			r.Proxy.Restore()
			r.wantClean(clients...)
			h.want(t, of.model)
			if grants.Load() < callers {
				t.Errorf("only %d grants", grants.Load())
			}
		})
	}
}

// TestHistoriesOnAnEnsemble has a history of each recipe while the leader is killed and comes back,
// and while a follower stands still (SIGSTOP). Each recipe goes on after every step.
func TestHistoriesOnAnEnsemble(t *testing.T) {
	t.Parallel()
	e := testserver.StartEnsemble(t, 3)
	ctx, stop := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	histories, grants := make([]*history, len(all)), make([]atomic.Int64, len(all))
	for i, of := range all {
		histories[i] = newHistory()
		cfg := config(t, e.Hosts()...)
		for who := range 3 {
			c := open(t, cfg)
			use := of.use(t, c)
			p := &player{
				TB: t, c: c, client: who, who: who, h: histories[i], rng: rand.New(rand.NewPCG(uint64(who), 13)),
				grants: &grants[i], held: map[driver.Lease]grant{}, strike: func() {},
			}
			wg.Go(func() {
				for ctx.Err() == nil {
					use(p)
				}
			})
		}
	}
	goesOn := func(what string) {
		t.Helper()
		for i, of := range all {
			before := grants[i].Load()
			until(t, of.name+" goes on "+what, func() bool { return grants[i].Load() >= before+5 })
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
	for i, of := range all {
		histories[i].want(t, of.model)
	}
}

// wantPaired checks that a listener heard of the start of each lease and then once of its end, and
// of the leases in the order of their fences.
func wantPaired(t testing.TB, events []recipes.Event) {
	t.Helper()
	var last uint64
	open := make(map[uint64]bool)
	for _, ev := range events {
		f := ev.Fence.Token
		switch {
		case ev.State != recipes.Acquired && !open[f]:
			t.Errorf("%+v of a lease that is not held", ev)
		case ev.State != recipes.Acquired:
			delete(open, f)
		case f <= last:
			t.Errorf("%+v after fence %d", ev, last)
		default:
			last, open[f] = f, true
		}
	}
	for f := range open {
		t.Errorf("the listener did not hear of the end of lease %d", f)
	}
}
