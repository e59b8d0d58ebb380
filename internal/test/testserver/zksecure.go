package testserver

import (
	"crypto/tls"
	"fmt"
	"path/filepath"
	"testing"
)

// SecureZooKeeper is a ZooKeeper server with a second port, for TLS. There it
// wants a certificate of the authority's from each client, and its subject is the
// client's identity in the scheme "x509".
type SecureZooKeeper struct {
	*ZooKeeper
	secureAddr string
}

// StartSecureZooKeeper is StartZooKeeper for a server with TLS. Its certificate
// is for 127.0.0.1 and for no name.
func StartSecureZooKeeper(tb testing.TB, a *Authority, opts ...ZooKeeperOption) *SecureZooKeeper {
	tb.Helper()
	needsServer(tb)
	dir := tb.TempDir()
	identity, trust := filepath.Join(dir, "identity.pem"), filepath.Join(dir, "trust.pem")
	a.store(identity, a.server())
	a.store(trust, tls.Certificate{Certificate: [][]byte{a.cert.Raw}})
	z := &SecureZooKeeper{}
	held, err := retryOnBind(2, func(nums []int) (err error) {
		cfg := newZKConfig(append([]ZooKeeperOption{WithConfig(
			fmt.Sprintf("secureClientPort=%d", nums[1]),
			"secureClientPortAddress=127.0.0.1",
			"serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory", // the other knows no TLS
			"authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider",
			"ssl.keyStore.location="+identity,
			"ssl.trustStore.location="+trust,
		)}, opts...))
		z.secureAddr = loopback(nums[1])
		if z.ZooKeeper, err = newZooKeeper(dir, cfg, zkMember{clientPort: nums[0]}); err != nil {
			return err
		}
		return z.start()
	})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(held.release)
	z.own(tb)
	return z
}

// SecureAddr returns host:port of the port for TLS. Addr is that of the other.
func (z *SecureZooKeeper) SecureAddr() string { return z.secureAddr }
