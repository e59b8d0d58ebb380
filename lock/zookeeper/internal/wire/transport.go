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
	rewatched func()
	zxid      atomic.Int64 // the highest that an answer had in this session

	ctx  context.Context // ends with Shut
	stop context.CancelFunc

	mu      sync.Mutex
	current net.Conn
	session int64              // ID; 0 before the first handshake
	timeout time.Duration      // as of the last handshake
	sent    leaseclock.Instant // when the last accepted handshake was sent
	expired bool               // the server said that the session is gone
	dialed  time.Time
	lastErr error // why the last connection was not made or ended early
}

// NewTransport returns a transport for a session that will ask for this time-out. It
// calls rewatched when the library has repeated its watches over a new connection.
func NewTransport(d *Dialer, timeout time.Duration, now leaseclock.Source, rewatched func()) *Transport {
	t := &Transport{dialer: d, now: now, rewatched: rewatched, handshake: max(time.Second, timeout/5)}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// Dial implements zk.Dialer.
func (t *Transport) Dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if err := t.pace(); err != nil {
		return nil, err
	}
	if t.dialer.TLS != nil {
		timeout = max(timeout, t.handshake)
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	nc, err := t.dialer.Connect(ctx, network, address)
	if err != nil {
		t.fail(err)
		return nil, err
	}
	_ = nc.SetDeadline(time.Now().Add(t.handshake))
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refusal(); err != nil {
		_ = nc.Close()
		return nil, err
	}
	t.current = newConn(nc, t)
	return t.current, nil
}

// pace slows the calls to a server that accepts connections only to drop them. The
// library has no pause there.
func (t *Transport) pace() error {
	t.mu.Lock()
	err := t.refusal()
	wait := time.Duration(0)
	if since := time.Since(t.dialed); since < 100*time.Millisecond {
		wait = 50*time.Millisecond + rand.N(100*time.Millisecond)
	}
	t.dialed = time.Now().Add(wait)
	t.mu.Unlock()
	if err != nil || wait == 0 {
		return err
	}
	select {
	case <-time.After(wait):
		return nil
	case <-t.ctx.Done():
		return errTransportShut
	}
}

// refusal says why no connection may be made any more. Needs t.mu.
func (t *Transport) refusal() error {
	switch {
	case t.ctx.Err() != nil:
		return errTransportShut
	case t.expired:
		return errSessionSwapped
	}
	return nil
}

func (t *Transport) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() == nil {
		t.lastErr = err
	}
}

// Failure is why there is no connection, for error messages.
func (t *Transport) Failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastErr
}

// Accepted returns what the last successful handshake agreed on.
func (t *Transport) Accepted() (session int64, timeout time.Duration, sent leaseclock.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session, t.timeout, t.sent
}

// saw records the zxid of an answer.
func (t *Transport) saw(zxid int64) {
	for {
		highest := t.zxid.Load()
		if zxid <= highest || t.zxid.CompareAndSwap(highest, zxid) {
			return
		}
	}
}

// whyRefused is a likely reason why a server does not answer a connect.
func (t *Transport) whyRefused() string {
	if zxid := t.zxid.Load(); zxid > 0 {
		return fmt.Sprintf(" (a stale server refuses a session that has seen zxid 0x%x)", zxid)
	}
	return ""
}

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
	t.stop()
	t.mu.Unlock()
	t.Drop()
}

// admit examines the server's answer to a connect. An error keeps the answer from the
// library.
func (t *Transport) admit(session int64, timeout time.Duration, sent leaseclock.Instant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case session == 0:
		// The library reports the expiry; it has to see this answer.
		t.expired = true
		return nil
	case t.session != 0 && t.session != session:
		t.expired = true
		t.lastErr = errSessionSwapped
		return errSessionSwapped
	case timeout <= 0:
		t.lastErr = fmt.Errorf("zookeeper: server granted a session time-out of %v", timeout)
		return t.lastErr
	}
	t.session, t.timeout, t.sent, t.lastErr = session, timeout, sent, nil
	return nil
}
