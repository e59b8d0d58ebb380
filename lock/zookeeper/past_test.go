package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// These tests have servers answer from the past, as a follower does that is behind.

// reconnect cuts the connection and returns when there is another one.
func reconnect(t testing.TB, c *Client, p *testserver.Proxy) {
	t.Helper()
	reconnectAfter(t, c, p.Cut)
}

// reconnectAfter loses the connection and returns when there is another one.
func reconnectAfter(t testing.TB, c *Client, lose func()) {
	t.Helper()
	s, cut := sessionOf(c), make(chan struct{})
	var once sync.Once
	defer c.Watch(func(ev ConnectionEvent) {
		if ev.State == Suspended {
			once.Do(func() { close(cut) })
		}
	})()
	lose()
	await(t, "connection lost", cut)
	until(t, "connected again", func() bool { _, err := s.session.Reads.Hint("/", session.OfNode); return err == nil })
}

// A lock is released right after a reconnect, to a server that does not know of the
// lock yet. When Release says that the lock is gone it is.
func TestReleaseAtAServerThatIsBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for round := range 8 {
		lease := r.take(r.l)
		r.age()
		r.proxy.Lag(testserver.Contains(r.path))
		if round%2 == 0 {
			r.proxy.Cut()
		} else {
			reconnect(t, r.c, r.proxy)
		}
		if err := lease.Release(bounded(t)); err != nil {
			t.Fatalf("round %d: Release() = %v", round, err)
		}
		if r.exists() {
			t.Fatalf("round %d: Release() = <nil>, and the lock is still there", round)
		}
		r.proxy.Restore()
		until(t, "usable", func() bool { return r.l.Ping(bounded(t)) == nil })
	}
}

// The connection breaks under a heartbeat. The session pauses before it sends another one, so the
// next connection is there before anything was acknowledged over it. A release waits for that.
func TestReleaseBeforeTheFirstWriteOfAConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for round := range 2 {
		lease := r.take(r.l)
		r.age()
		r.proxy.Lag(testserver.Contains(r.path))
		reconnectAfter(t, r.c, func() { await(t, "a heartbeat", r.proxy.DropNextReply(testserver.Op(testserver.OpMulti))) })
		if err := lease.Release(bounded(t)); err != nil {
			t.Fatalf("round %d: Release() = %v", round, err)
		}
		if r.exists() {
			t.Fatalf("round %d: Release() = <nil>, and the lock is still there", round)
		}
		r.proxy.Restore()
		until(t, "usable", func() bool { return r.l.Ping(bounded(t)) == nil })
	}
}

// The reply to a release is lost, and the next server does not know of the lock yet.
func TestLostReleaseAtAServerThatIsBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for round := range 5 {
		lease := r.take(r.l)
		r.age()
		r.proxy.Lag(testserver.Contains(r.path))
		r.proxy.DropNextRequest(r.onLock()) // not applied, but the client cannot know
		r.release(lease)
		if r.exists() {
			t.Fatalf("round %d: Release() = <nil>, and the lock is still there", round)
		}
		r.proxy.Restore()
		until(t, "usable", func() bool { return r.l.Ping(bounded(t)) == nil })
	}
}

// supersede takes the lock and gives it to another owner. It has the servers of later
// connections show the first owner's lock until they have caught up.
func (r *rig) supersede(l *Locker) (theirs *Lease) {
	r.Helper()
	before := r.take(l)
	data, stat, err := r.raw.Get(r.path)
	if err != nil {
		r.Fatal(err)
	}
	r.release(before)
	theirs = r.take(r.other)
	answer := append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
	if answer, err = binary.Append(answer, binary.BigEndian, stat); err != nil {
		r.Fatal(err)
	}
	r.proxy.LagTo(testserver.All(testserver.Op(testserver.OpGetData), testserver.Contains(r.path)), answer)
	return theirs
}

// jam makes connections that can get stuck in a write.
type jam struct {
	next  atomic.Bool   // the next write gets stuck
	stuck chan struct{} // receives when it is
}

func (j *jam) dial(ctx context.Context, network, address string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, address)
	return &jammed{Conn: c, jam: j, ended: make(chan struct{})}, err
}

// jammed is one of these connections.
type jammed struct {
	net.Conn
	*jam
	ended chan struct{} // closed when the connection has broken, which ends a stuck write
	once  sync.Once
}

// Read implements net.Conn.
func (c *jammed) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.once.Do(func() { close(c.ended) })
	}
	return n, err
}

// Write implements net.Conn.
func (c *jammed) Write(b []byte) (int, error) {
	if c.next.CompareAndSwap(true, false) {
		c.stuck <- struct{}{}
		<-c.ended
	}
	return c.Conn.Write(b)
}

// A holder asks whether it still has its lock. A server that is behind does not take
// it away.
func TestCheckAtAServerThatIsBehind(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	for range 5 {
		r.proxy.Lag(testserver.Contains(r.path))
		r.proxy.Cut()
		if _, err := lease.Check(bounded(t)); err != nil {
			t.Fatalf("Check() = %v, want the lease to be held", err)
		}
		r.proxy.Restore()
		until(t, "usable", func() bool { return r.l.Ping(bounded(t)) == nil })
	}
	r.release(lease)
}

// connects records the connect requests that pass a proxy.
type connects struct {
	mu  sync.Mutex
	all []connect
}

type connect struct{ zxid, session int64 }

// record matches nothing.
func (c *connects) record(req testserver.Request) bool {
	if req.Op == testserver.OpConnect && len(req.Payload) >= 24 {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = append(c.all, connect{
			zxid:    int64(binary.BigEndian.Uint64(req.Payload[4:])),
			session: int64(binary.BigEndian.Uint64(req.Payload[16:])),
		})
	}
	return false
}

func (c *connects) last() (last connect, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n = len(c.all); n > 0 {
		last = c.all[n-1]
	}
	return last, n
}

// Each connect tells the server the highest zxid that the session has seen, however
// fast one follows the other. A new session has seen none.
func TestConnectTellsTheHighestZxid(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var seen connects
	r.proxy.DropNextRequest(seen.record)
	session := sessionOf(r.c).session.Status.ID()
	for range 3 {
		lease := r.take(r.l)
		_, before := seen.last()
		reconnect(t, r.c, r.proxy)
		reconnect(t, r.c, r.proxy) // what the first one's answers told is hidden from the library
		got, n := seen.last()
		if n < before+2 || got.session != session || got.zxid < int64(lease.Fence().Token) {
			t.Fatalf("connect %d tells zxid %#x, session %#x; want %#x at least, session %#x", n, got.zxid, got.session, lease.Fence().Token, session)
		}
		r.release(lease)
	}
	_, n := seen.last()
	killSession(t, r.c, r.proxy)
	until(t, "another session", func() bool {
		s := sessionOf(r.c)
		return s != nil && s.session.Status.ID() != session
	})
	seen.mu.Lock()
	defer seen.mu.Unlock()
	for _, c := range seen.all[n:] {
		if c.session == 0 && c.zxid == 0 {
			return
		}
	}
	t.Errorf("connects %+v, want one for a new session that has seen nothing", seen.all[n:])
}

// goAhead has a session see more transactions than a server knows of that has just
// been started.
func goAhead(t testing.TB, c *Client) {
	t.Helper()
	l := c.Locker()
	until(t, "the session is ahead", func() bool {
		lease, err := l.TryAcquire(bounded(t), request(newID()))
		if err != nil {
			return false
		}
		defer lease.ReleaseInBackground()
		return lease.Fence().Token > 1000
	})
	await(t, "its releases", c.core.Keeper.Background.Idle())
}

// A server that is behind a session refuses it. The client goes back to the other one
// at once, and has its leases still.
func TestServerThatIsBehindIsLeft(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	other := testserver.StartZooKeeperProxy(t, testserver.StartZooKeeper(t).Addr())
	other.Refuse(true)
	cfg := r.cfg
	cfg.Servers = []string{r.proxy.Addr(), other.Addr()}
	c := open(t, cfg)
	s := sessionOf(c)
	goAhead(t, c)
	lease := r.take(c.Locker())
	other.Refuse(false)
	for other.Accepted() < 3 {
		began, refused := time.Now(), other.Accepted()
		reconnect(t, c, r.proxy)
		if took := time.Since(began); took > (s.session.Trust.Timeout()-session.Margin(s.session.Trust.Timeout(), testTick))/2 {
			t.Errorf("connected again after %v, want it at once", took)
		}
		if n := other.Accepted() - refused; n > 1 {
			t.Errorf("the server that is behind was asked %d times for one connection", n)
		}
	}
	if sessionOf(c) != s {
		t.Errorf("the session has ended: %v", s.session.Status.Err())
	}
	r.wantHeld(lease)
	r.release(lease)
}

// An ensemble was rebuilt from nothing, or from a backup. Its servers refuse the
// session for ever, and are not asked in a tight loop. The client gives the session up
// when its leases have been lost for a session time-out, and starts another one.
func TestRebuiltEnsemble(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.SessionTimeout = 3 * time.Second
	var mu sync.Mutex
	target, dials := cfg.Servers[0], 0
	cfg.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		mu.Lock()
		to := target
		dials++
		mu.Unlock()
		return new(net.Dialer).DialContext(ctx, network, to)
	}
	proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
	target = proxy.Addr()
	c := open(t, cfg)
	lease, err := c.Locker().TryAcquire(bounded(t), request(newID()))
	if err != nil {
		t.Fatal(err)
	}
	old, rebuilt := sessionOf(c), testserver.StartZooKeeper(t)
	goAhead(t, c)
	mu.Lock()
	target, dials = rebuilt.Addr(), 0
	mu.Unlock()
	began := time.Now()
	proxy.Cut()
	await(t, "session given up", old.session.Status.Over())
	if why := old.session.Status.Err(); !errors.Is(why, session.ErrGivenUp) {
		t.Errorf("the session ended with %v, want %v", why, session.ErrGivenUp)
	}
	if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Err() = %v, want %v", err, driver.ErrLeaseLost)
	}
	mu.Lock()
	n, most := dials, 2+2*int(time.Since(began)/time.Second)
	mu.Unlock()
	if n > most {
		t.Errorf("%d connections were made in %v, want %d at most", n, time.Since(began), most)
	}
	until(t, "another session", func() bool { return c.Locker().Ping(bounded(t)) == nil })
	if next, err := c.Locker().TryAcquire(bounded(t), request(newID())); err != nil || next.Fence().Domain == lease.Fence().Domain {
		t.Errorf("TryAcquire() at the rebuilt ensemble = %+v, %v; want a fence of another domain", next, err)
	}
}
