package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// authBreaker fails one write of credentials, as a connection does that breaks
// at that moment.
type authBreaker struct {
	net.Conn
	armed *atomic.Bool
	hit   chan struct{}
}

// opSetAuth is the request that presents credentials.
const opSetAuth = 100

func (c *authBreaker) Write(p []byte) (int, error) {
	if len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) == opSetAuth && c.armed.CompareAndSwap(true, false) {
		close(c.hit)
		_ = c.Close()
		return 0, errors.New("connection reset by peer")
	}
	return c.Conn.Write(p)
}

// A connection that breaks while credentials are presented again is replaced by
// another one, and the session goes on.
func TestCredentialsLostOnReconnect(t *testing.T) {
	t.Parallel()
	proxy := testserver.StartZooKeeperProxy(t, testserver.SharedZooKeeper(t)[0])
	cfg := config(t, proxy.Addr())
	cfg.Credentials = []Credential{{Scheme: "digest", Secret: []byte("u:p")}}
	var armed atomic.Bool
	hit := make(chan struct{})
	cfg.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &authBreaker{Conn: nc, armed: &armed, hit: hit}, nil
	}
	c := open(t, cfg)
	held := taken(t, c, newID())
	armed.Store(true)
	proxy.Cut()
	await(t, "write broken", hit)
	until(t, "the client to be up", func() bool { _, err := c.usable(); return err == nil })
	held.ReleaseInBackground()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if err := c.Close(bounded(t)); err != nil {
			t.Errorf("Close() = %v", err)
		}
	}()
	await(t, "Close", closed)
}
