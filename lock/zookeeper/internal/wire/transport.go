package wire

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

var (
	errTransportShut  = errors.New("zookeeper: transport is shut")
	errSessionSwapped = errors.New("zookeeper: refused to carry requests over into another session")
)

// Transport makes the connections of one session. Its Dial is the library's dialer. It
// makes no connection after the session has expired, or after Shut.
type Transport struct {
	dialer    *Dialer
	handshake time.Duration // deadline for it
	now       leaseclock.Source
	zxid      atomic.Int64 // the highest of any answer in this session
	dialed    time.Time    // for pace, and only Dial's goroutine uses it

	ctx  context.Context // ends when no more connections may be made
	stop context.CancelCauseFunc

	mu      sync.Mutex
	current net.Conn
	session int64              // ID, or 0 before the first handshake
	timeout time.Duration      // as of the last handshake
	sent    leaseclock.Instant // when the last accepted handshake was sent
	lastErr error              // why the last connection was not made or ended early
}

// NewTransport returns a transport for a session with this time-out.
func NewTransport(d *Dialer, timeout time.Duration, now leaseclock.Source) *Transport {
	t := &Transport{dialer: d, now: now, handshake: max(time.Second, timeout/5)}
	t.ctx, t.stop = context.WithCancelCause(context.Background())
	return t
}

// Dial implements zk.Dialer.
func (t *Transport) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if t.dialer.TLS != nil {
		timeout = max(timeout, t.handshake)
	}
	t.pace()
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	nc, err := t.dialer.Connect(ctx, network, address)
	if err != nil {
		t.fail(err)
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := context.Cause(t.ctx); err != nil {
		_ = nc.Close()
		return nil, err
	}
	t.current = newConn(nc, t)
	return t.current, nil
}

// pace slows the calls to a server if it accepts connections only to drop them. The library has
// no pause there.
func (t *Transport) pace() {
	if time.Since(t.dialed) < 100*time.Millisecond {
		select {
		case <-time.After(50*time.Millisecond + rand.N(100*time.Millisecond)):
		case <-t.ctx.Done():
		}
	}
	t.dialed = time.Now()
}

func (t *Transport) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !errors.Is(context.Cause(t.ctx), errTransportShut) {
		t.lastErr = err
	}
}

// Failure is why there is no connection, for error messages.
func (t *Transport) Failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastErr
}

// Accepted returns the terms of the last successful handshake.
func (t *Transport) Accepted() (session int64, timeout time.Duration, sent leaseclock.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session, t.timeout, t.sent
}

// saw records the zxid of an answer. The goroutine that reads calls it.
func (t *Transport) saw(zxid int64) { t.zxid.Store(max(zxid, t.zxid.Load())) }

// Drop closes the present connection. The library then makes another one.
func (t *Transport) Drop() {
	t.mu.Lock()
	c := t.current
	t.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// Shut closes the present connection and makes no other. It does not close the session.
func (t *Transport) Shut() {
	t.mu.Lock()
	t.stop(errTransportShut)
	t.mu.Unlock()
	t.Drop()
}

// admit examines the server's answer to a connect. If admit fails, the library does not get the
// answer. The library must see the answer for an expired session, since it reports the expiry.
func (t *Transport) admit(session int64, timeout time.Duration, sent leaseclock.Instant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case session == 0:
		t.stop(errSessionSwapped)
		return nil
	case t.session != 0 && t.session != session:
		t.stop(errSessionSwapped)
		return errSessionSwapped
	case timeout <= 0:
		return fmt.Errorf("zookeeper: server granted a session time-out of %v", timeout)
	}
	t.session, t.timeout, t.sent, t.lastErr = session, timeout, sent, nil
	return nil
}

// Hosts hands the servers to go-zookeeper by name and in turn. The library's own provider
// resolves all names once, at the first connect. It never finds an ensemble after a move, and
// one bad name fails all. It also waits a second before the first reconnect to a single server,
// and this pause costs leases on short sessions.
//
// The library calls it from one goroutine.
type Hosts struct {
	servers []string
	next    int
	tries   int // since the last successful handshake
}

// Init implements zk.HostProvider. The servers come shuffled.
func (h *Hosts) Init(servers []string) error {
	h.servers = servers
	return nil
}

// Len implements zk.HostProvider.
func (h *Hosts) Len() int { return len(h.servers) }

// Next implements zk.HostProvider. When all servers have failed, the library fails the waiting
// requests and pauses for a second.
func (h *Hosts) Next() (server string, all bool) {
	server = h.servers[h.next%len(h.servers)]
	all = h.tries > 0 && h.tries%len(h.servers) == 0
	h.next++
	h.tries++
	return server, all
}

// Connected implements zk.HostProvider.
func (h *Hosts) Connected() { h.tries = 0 }
