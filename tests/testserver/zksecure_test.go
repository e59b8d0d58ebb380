package testserver_test

import (
	"crypto/tls"
	"net"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestSecureZooKeeper_KnowsClientsByTheirCertificates(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	z := testserver.StartSecureZooKeeper(t, ca)
	dial := func(name string) *zk.Conn {
		cfg := ca.Client(name)
		cfg.ServerName = "127.0.0.1"
		conn, events, err := zk.Connect([]string{z.SecureAddr()}, 10*time.Second, zk.WithLogger(silent{}),
			zk.WithDialer(func(network, address string, timeout time.Duration) (net.Conn, error) {
				return tls.DialWithDialer(&net.Dialer{Timeout: 10 * timeout}, network, address, cfg)
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			conn.Close()
			for range events {
			}
		})
		eventually(t, "a session", func() bool { return conn.State() == zk.StateHasSession })
		return conn
	}
	mine := dial("mine")
	if _, err := mine.Create("/mine", nil, 0, zk.AuthACL(zk.PermAll)); err != nil {
		t.Fatalf("Create = %v", err)
	}
	acl, _, err := mine.GetACL("/mine")
	if err != nil || len(acl) != 1 || acl[0].Scheme != "x509" || acl[0].ID != "CN=mine" {
		t.Errorf("GetACL = %v, %v; want x509 and CN=mine", acl, err)
	}
	other := dial("other")
	if err := other.Delete("/mine", -1); err != nil {
		t.Errorf("Delete below the world's / = %v", err)
	}
	if conn, err := tls.Dial("tcp", z.SecureAddr(), ca.Client("")); err == nil {
		_ = conn.SetDeadline(time.Now().Add(testserver.StartTimeout))
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a client without a certificate is served")
		}
		_ = conn.Close()
	}
}
