package simulate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/queue"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	"github.com/idemkeeper/idemkeeper/sweeper"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simstore"
)

var errDead = errors.New("simulate: the process is dead")

// process is one life of a service process. After a crash another one takes its place.
type process struct {
	w     *world
	index int
	host  string // another one for each life

	toStore, toLedger *simnet.Caller
	client            *zookeeper.Client
	locks             *simstore.Locker // with combined calls
	engine            *idem.Engine
	owes              owed

	ctx  context.Context // ends with the life
	kill context.CancelFunc
	wg   sync.WaitGroup
	up   chan struct{} // closed when it serves, or is dead
	rest chan struct{} // closed when it has stopped to use recipes, or is dead

	mu          sync.Mutex
	pausedFrom  time.Time
	pausedUntil time.Time
}

// launch starts a life of the process with this index.
func (w *world) launch(index int) {
	w.lives++
	p := &process{w: w, index: index, host: fmt.Sprintf("p%d-%d", index, w.lives), up: make(chan struct{}), rest: make(chan struct{})}
	p.ctx, p.kill = context.WithCancel(context.Background())
	fates := w.plan.Fates
	if w.calm {
		fates = simnet.Fates{}
	}
	p.toStore = w.net.NewCaller(p.host, storeHost, fates)
	fates.Twice = 0 // a ledger counts payments, and cannot tell a repeated message from another one
	p.toLedger = w.net.NewCaller(p.host, ledgerHost, fates)
	w.callers = append(w.callers, p.toStore, p.toLedger)
	w.processes[index] = p
	w.wg.Go(p.live)
}

// now is the lease clock of the process. It stands still during a pause.
func (p *process) now() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	at := time.Now()
	if at.Before(p.pausedUntil) {
		at = p.pausedFrom
	}
	ran := float64(at.Sub(p.w.start)) * p.w.plan.Speeds[1+p.index]
	return time.Hour + time.Duration(ran)
}

// runs reports whether the process is neither dead nor paused.
func (p *process) runs() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ctx.Err() == nil && !time.Now().Before(p.pausedUntil)
}

// pause keeps the process from sending and reading for d.
func (p *process) pause(d time.Duration) {
	now := time.Now()
	p.mu.Lock()
	if !now.Before(p.pausedUntil) {
		p.pausedFrom = now
	}
	if until := now.Add(d); until.After(p.pausedUntil) {
		p.pausedUntil = until
	}
	p.mu.Unlock()
	p.w.net.Block(simnet.Block{Src: p.host, From: now, To: now.Add(d)})
	p.w.net.Block(simnet.Block{Dst: p.host, From: now, To: now.Add(d)})
	time.AfterFunc(d, p.w.leases.check)
}

// crash ends the life. The servers may not hear of it.
func (p *process) crash(silent bool) {
	if p.ctx.Err() != nil {
		return
	}
	p.kill()
	if !silent { // otherwise the machine is gone, and nothing closes its connections
		p.w.net.Cut(func(src, _ string) bool { return src == p.host }, p.w.coin)
	}
	p.w.net.Gone(p.host)
}

// zookeeperConfig is how the process reaches the ensemble.
func (p *process) zookeeperConfig() zookeeper.Config {
	return zookeeper.Config{
		Servers: serverNames(), SessionTimeout: p.w.plan.Session, TickTime: p.w.plan.Tick, Logger: slog.New(slog.DiscardHandler),
		Dial: func(ctx context.Context, _, server string) (net.Conn, error) {
			if p.ctx.Err() != nil {
				return nil, errDead
			}
			return p.w.net.Dial(ctx, p.host, server)
		},
	}.WithClock(p.now)
}

// live runs the process until it is killed or told to stop.
func (p *process) live() {
	serving := sync.OnceFunc(func() { close(p.up) })
	resting := sync.OnceFunc(func() { close(p.rest) })
	defer resting()
	defer serving()
	for p.client == nil {
		c, err := zookeeper.Open(p.ctx, p.zookeeperConfig())
		switch {
		case err == nil:
			p.client = c
		case p.ctx.Err() != nil:
			return
		case !errors.Is(err, driver.ErrUnavailable):
			p.w.failf("process %s cannot open: %v", p.host, err)
			return
		}
	}
	var opts []zookeeper.LockerOption
	if p.w.plan.Markers {
		opts = append(opts, zookeeper.WithDurableMarkers())
	}
	store := overseenStore{p.w.store.Client(p.calls(p.toStore)).WithClock(p.now), p}
	var locker driver.Locker = &overseen{Locker: p.client.Locker(opts...), p: p}
	if p.w.plan.Combined {
		p.locks = store.Locker(p.w.plan.Session)
		defer p.locks.Abandon()
		locker = overseenLocks{p.locks, p}
	}
	var err error
	p.engine, err = idem.New(locker, store, idem.WithLogger(slog.New(slog.DiscardHandler)), idem.WithSettleTimeout(p.settleTimeout()), idem.WithStoreTimeout(p.w.plan.Session/4))
	if err != nil {
		p.w.failf("%v", err)
		return
	}
	election := recipes.MustNewElection(p.client, "/sweeper", p.host)
	sw, err := sweeper.New(p.engine, p.w.policies(), sweeper.WithInterval(500*time.Millisecond), sweeper.WithMinAge(p.w.plan.Session/4),
		sweeper.WithInbox(queue.MustNew(p.client, "/inbox")), sweeper.WithMaxBackoff(5*time.Second),
		sweeper.WithLead(func(ctx context.Context, term func(context.Context) error) error {
			return election.RunAsLeader(ctx, func(ctx context.Context, _ driver.Fence) error { return term(ctx) })
		}))
	if err != nil {
		p.w.failf("%v", err)
		return
	}
	serving()
	ctx, cancel := context.WithCancel(p.ctx)
	p.wg.Go(func() { sw.Run(context.WithValue(ctx, at{}, p)) }) // the resolver asks for the process
	p.wg.Go(func() {
		defer resting()
		if !p.w.plan.has(RestoreServers) { // recipes have no memory outside of ZooKeeper
			p.useRecipes(ctx)
		}
	})
	select {
	case <-p.ctx.Done():
		p.client.Abandon()
		if p.locks != nil {
			p.locks.Abandon()
		}
		cancel()
		_ = p.engine.Close(p.ctx)
		p.wg.Wait()
		return
	case <-p.w.stopping:
	}
	cancel()
	p.wg.Wait()
	closing, done := context.WithTimeout(context.Background(), time.Minute)
	defer done()
	if err := p.engine.Close(closing); err != nil {
		p.w.failf("process %s: Engine.Close() = %v", p.host, err)
	}
	if n := p.owes.count(); n > 0 {
		p.w.failf("process %s has left %d calls without an answer as they were", p.host, n)
	}
	if p.locks != nil {
		if err := p.locks.Close(closing); err != nil {
			p.w.failf("process %s: Locker.Close() = %v", p.host, err)
		}
	}
	if err := p.client.Close(closing); err != nil {
		p.w.failf("process %s: Client.Close() = %v", p.host, err)
	}
}

// settleTimeout is how long an engine waits for the store before it answers.
func (p *process) settleTimeout() time.Duration { return p.w.plan.Session / 4 }

// calls makes the calls of this life. A step of the process comes before and after each.
func (p *process) calls(c *simnet.Caller) func(ctx context.Context, serve func()) error {
	return func(ctx context.Context, serve func()) error {
		if err := p.step(c == p.toLedger); err != nil {
			return err
		}
		if err := c.Do(ctx, serve); err != nil {
			return err
		}
		return p.step(c == p.toLedger)
	}
}

// step counts a step of the process, at which a fault may strike.
func (p *process) step(atLedger bool) error {
	p.w.stepped(p, atLedger)
	if p.ctx.Err() != nil {
		return errDead
	}
	return nil
}
