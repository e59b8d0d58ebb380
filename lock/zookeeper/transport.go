package zookeeper

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

// transport makes the TCP connections of one session, one after the other, and
// holds go-zookeeper to three things that it does not do by itself:
//
//   - A zk.Conn never gets a second session. After an expiry the library would
//     quietly open one and send into it what was queued for the old one.
//   - A handshake has a deadline, all of it.
//   - The negotiated session time-out is known: it is read from the server's
//     first answer on the wire.
//   - The session does not go back in time: each connect tells the server the highest
//     zxid that any server has shown this session, and one that is behind refuses it.
type transport struct {
	dialer    func(ctx context.Context, network, address string) (net.Conn, error)
	explain   func(error) error
	secure    bool          // dialer shakes hands as well, for TLS
	handshake time.Duration // deadline for it
	now       leaseclock.Source
	watched   func()       // called when the library has sent its watches again
	zxid      atomic.Int64 // the highest that an answer had in this session

	ctx  context.Context // ends with shut
	stop context.CancelFunc

	mu      sync.Mutex
	current *conn
	session int64              // ID; 0 before the first handshake
	timeout time.Duration      // as of the last handshake
	sent    leaseclock.Instant // when the last accepted handshake was sent
	expired bool               // the server said that the session is gone
	dialed  time.Time
	lastErr error // why the last connection was not made or ended early
}

func newTransport(cfg *Config, watched func()) *transport {
	t := &transport{dialer: cfg.connect, explain: cfg.explain, secure: cfg.TLS != nil, now: cfg.now, watched: watched, handshake: max(time.Second, cfg.SessionTimeout/5)}
	t.ctx, t.stop = context.WithCancel(context.Background())
	return t
}

// dial is the library's dialer.
func (t *transport) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if err := t.pace(); err != nil {
		return nil, err
	}
	if t.secure {
		timeout = max(timeout, t.handshake)
	}
	ctx, cancel := context.WithTimeout(t.ctx, timeout)
	defer cancel()
	nc, err := t.dialer(ctx, network, address)
	if err != nil {
		t.fail(err)
		return nil, err
	}
	c := &conn{Conn: nc, t: t, greeting: true}
	_ = nc.SetDeadline(time.Now().Add(t.handshake))
	t.mu.Lock()
	refused := t.refusal()
	if refused == nil {
		t.current = c
		if t.session != 0 {
			c.repeated = make(chan struct{})
		}
	}
	t.mu.Unlock()
	if refused != nil {
		_ = nc.Close()
		return nil, refused
	}
	return c, nil
}

// pace keeps a server that accepts connections only to drop them from being
// called in a tight loop; the library has no pause there.
func (t *transport) pace() error {
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
func (t *transport) refusal() error {
	switch {
	case t.ctx.Err() != nil:
		return errTransportShut
	case t.expired:
		return errSessionSwapped
	}
	return nil
}

func (t *transport) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() == nil {
		t.lastErr = err
	}
}

// failure is why there is no connection, for error messages.
func (t *transport) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastErr
}

// accepted returns what the last successful handshake settled.
func (t *transport) accepted() (session int64, timeout time.Duration, sent leaseclock.Instant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.session, t.timeout, t.sent
}

// saw takes note of the zxid of an answer.
func (t *transport) saw(zxid int64) {
	for {
		highest := t.zxid.Load()
		if zxid <= highest || t.zxid.CompareAndSwap(highest, zxid) {
			return
		}
	}
}

// whyRefused is what may be the matter with a server that does not answer a connect.
func (t *transport) whyRefused() string {
	if zxid := t.zxid.Load(); zxid > 0 {
		return fmt.Sprintf(" (a server that is behind what this session has seen, zxid 0x%x, refuses it)", zxid)
	}
	return ""
}

// drop closes the present connection; the library then makes another one.
func (t *transport) drop() {
	t.mu.Lock()
	c := t.current
	t.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
}

// shut closes the present connection for good. Nothing is sent any more, the
// session is not closed.
func (t *transport) shut() {
	t.mu.Lock()
	t.stop()
	t.mu.Unlock()
	t.drop()
}

// admit looks at the server's answer to a connect. An error keeps the library
// from seeing it.
func (t *transport) admit(session int64, timeout time.Duration, sent leaseclock.Instant) error {
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
