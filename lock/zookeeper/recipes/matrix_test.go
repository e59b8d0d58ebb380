package recipes

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// pair is a client behind a proxy and one beside it, which share a chroot, and
// credentials.
type pair struct {
	testing.TB
	proxy    *testserver.Proxy
	c, other *zookeeper.Client
}

func newPair(t testing.TB, timeout time.Duration) *pair {
	t.Helper()
	cfg := sharedConfig(t)
	p := &pair{TB: t, proxy: testserver.StartZooKeeperProxy(t, cfg.Servers[0])}
	cfg.Credentials, cfg.SessionTimeout = []zookeeper.Credential{mine}, 60*time.Second
	p.other = open(t, cfg)
	cfg.Servers, cfg.SessionTimeout = []string{p.proxy.Addr()}, timeout
	p.c = open(t, cfg)
	return p
}

// queueUp asks for everything and does not wait for it.
func (p *pair) queueUp(c *zookeeper.Client, got func(i int, l driver.Lease)) (answered <-chan struct{}) {
	var wg sync.WaitGroup
	for i, f := range everyAsk(c) {
		wg.Go(func() {
			l, err := f.ask(bounded(p))
			if err != nil {
				p.Errorf("%s = %v, want a lease", f.name, err)
				return
			}
			got(i, l)
		})
	}
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	return done
}

func (p *pair) holdAll(c *zookeeper.Client) []driver.Lease {
	p.Helper()
	had := make([]driver.Lease, len(everyAsk(c)))
	await(p, "everything", p.queueUp(c, func(i int, l driver.Lease) { had[i] = l }))
	if p.Failed() {
		p.FailNow()
	}
	return had
}

// wantIdle says that a client has nothing left to settle.
func (p *pair) wantIdle(c *zookeeper.Client) {
	p.Helper()
	recipetest.Idle(p, c)
}

// holderRow is a fault that costs a holder its session.
type holderRow struct {
	name   string
	fault  func(p *pair)
	killed bool // who kills a session does not tell its holder first

	p          *pair
	held, next []driver.Lease
	contexts   []context.Context // of the leases of this package, otherwise nil
	answered   <-chan struct{}
}

// TestMatrix forces each fault on everything that gives leases, which the histories do by chance.
// Apache Curator, kazoo, etcd and their like are tested with the same faults. Whatever becomes of
// the holder's session, no other client has what it holds while the holder believes in its lease,
// and everything goes on afterwards. The rows wait for the same seconds.
func TestMatrix(t *testing.T) {
	t.Parallel()
	rows := []*holderRow{
		{name: "black hole", fault: func(p *pair) { p.proxy.BlackHole(testserver.Both) }},
		{name: "half-open", fault: func(p *pair) { p.proxy.BlackHole(testserver.ToClient) }},
		{name: "deaf", fault: func(p *pair) { p.proxy.BlackHole(testserver.ToServer) }},
		{name: "handshake stalls", fault: func(p *pair) { p.proxy.StallAccept(true); p.proxy.Cut() }},
		{name: "no server", fault: func(p *pair) { p.proxy.Refuse(true); p.proxy.Cut() }},
		{name: "late delivery", fault: func(p *pair) { p.proxy.Freeze(testserver.Both) }},
		{name: "session is killed", fault: (*pair).kill, killed: true},
		{name: "killed and cut off", fault: func(p *pair) { p.proxy.BlackHole(testserver.ToClient); p.kill() }, killed: true},
	}
	for _, row := range rows {
		row.p = newPair(t, 3*time.Second)
		row.held = row.p.holdAll(row.p.c)
		row.next = make([]driver.Lease, len(row.held))
		for _, l := range row.held {
			var ctx context.Context
			if l, ok := l.(*Lease); ok {
				ctx = l.Context(context.Background())
			}
			row.contexts = append(row.contexts, ctx)
		}
		row.answered = row.p.queueUp(row.p.other, func(i int, l driver.Lease) {
			row.next[i] = l
			if row.killed {
				return
			}
			if row.held[i].Err() == nil || row.contexts[i] != nil && row.contexts[i].Err() == nil {
				t.Errorf("%s: %T is had by two", row.name, l)
			}
		})
	}
	for _, row := range rows {
		row.fault(row.p)
	}
	for _, row := range rows {
		await(t, row.name+": the next ones", row.answered)
	}
	if t.Failed() {
		t.FailNow()
	}
	for _, row := range rows {
		for i, l := range row.held {
			await(t, "lease lost", l.Done())
			if ctx := row.contexts[i]; ctx != nil {
				await(t, "context of a lost lease", ctx.Done())
				if !errors.Is(context.Cause(ctx), driver.ErrLeaseLost) {
					t.Errorf("%s: the cause of the context is %v, want %v", row.name, context.Cause(ctx), driver.ErrLeaseLost)
				}
			}
			if !l.Fence().Before(row.next[i].Fence()) {
				t.Errorf("%s: %T: fence %v after %v", row.name, l, row.next[i].Fence(), l.Fence())
			}
			l.ReleaseInBackground()
		}
		row.p.proxy.Restore()
	}
	for _, row := range rows {
		until(t, row.name+": usable again", func() bool { return row.p.c.Locker().Ping(bounded(t)) == nil })
		row.p.wantIdle(row.p.c)
		wantHeldStill(t, row.next)
		releaseAll(t, row.next)
		releaseAll(t, row.p.holdAll(row.p.c))
	}
}

// kill ends the session of the client behind the proxy by a second connection.
func (p *pair) kill() {
	p.Helper()
	s := sessionOf(p.c)
	until(p, "session killed", func() bool {
		return testserver.KillSession(testserver.SharedZooKeeper(p)[0], s.Session.Status.ID(), password(p.proxy)) == nil || s.Session.Status.Err() != nil
	})
}
