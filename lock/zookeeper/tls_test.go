package zookeeper

import (
	"crypto/tls"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestTLS(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	z := testserver.StartSecureZooKeeper(t, ca)
	t.Run("identity", func(t *testing.T) { t.Parallel(); tlsIdentity(t, ca, z) })
	t.Run("handshake stalls", func(t *testing.T) { t.Parallel(); tlsHandshakeStalls(t, ca, z) })
}

// A client with a certificate works end to end, over TLS, and what it makes is
// for its subject alone.
func tlsIdentity(t *testing.T, ca *testserver.Authority, z *testserver.SecureZooKeeper) {
	link := testserver.StartProxy(t, z.SecureAddr())
	cfg := config(t, link.Addr())
	cfg.TLS = ca.Client("payments")
	c := open(t, cfg)
	id := newID()
	held := taken(t, c, id)
	link.Cut() // the certificate is presented again
	until(t, "connected again", func() bool { return c.Locker().Ping(bounded(t)) == nil })
	if _, err := held.Check(bounded(t)); err != nil {
		t.Errorf("Check() = %v, want a held lease", err)
	}

	// Others: with another certificate, or none because they came by the plain port.
	cfg.Servers = []string{z.SecureAddr()}
	other := cfg
	other.Home, other.Root, other.Chroot, other.TLS = "/other", "/other/lock", "", ca.Client("other")
	others := connOf(t, sessionOf(open(t, other)))
	plain := rawConn(t, z.Hosts())
	for name, conn := range map[string]*zk.Conn{"another certificate": others, "no certificate": plain} {
		if err := conn.Delete(znodeOf(held), -1); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("%s: Delete(%s) = %v, want %v", name, znodeOf(held), err, zk.ErrNoAuth)
		}
		if err := conn.Delete(sessionOf(c).session.Member(), -1); !errors.Is(err, zk.ErrNoAuth) {
			t.Errorf("%s: Delete(member) = %v, want %v", name, err, zk.ErrNoAuth)
		}
	}
	acl, _, err := connOf(t, sessionOf(c)).GetACL(znodeOf(held))
	if err != nil || len(acl) != 1 || acl[0].Scheme != "x509" || acl[0].ID != "CN=payments" {
		t.Errorf("GetACL() = %v, %v; want CN=payments", acl, err)
	}
	// The same subject is the same client, by whatever certificate.
	cfg.TLS = ca.Client("payments")
	same := open(t, cfg)
	if open, err := same.OpenParents(bounded(t)); len(open) > 0 || err != nil {
		t.Errorf("OpenParents() = %q, %v; want none", open, err)
	}
	for _, l := range []*Lease{held, taken(t, same, newID())} {
		if err := l.Release(bounded(t)); err != nil {
			t.Errorf("Release() = %v", err)
		}
	}

	wantRefused(t, cfg, ca, z)
}

// wantRefused says that nobody is served who does not prove who it is, nor by
// whom, and that the error says so in one line.
func wantRefused(t *testing.T, cfg Config, ca *testserver.Authority, z *testserver.SecureZooKeeper) {
	t.Helper()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, tt := range []struct {
		name   string
		change func(cfg *Config)
		want   string
	}{
		{"no certificate", func(cfg *Config) { cfg.TLS = ca.Client("") }, "want a client certificate"},
		{"a stranger's certificate", func(cfg *Config) {
			cfg.TLS = testserver.NewAuthority(t).Client("payments")
			cfg.TLS.RootCAs = ca.Pool()
		}, "this client's certificate"},
		{"a stranger's server", func(cfg *Config) { cfg.TLS = testserver.NewAuthority(t).Client("payments") }, "unknown authority"},
		{"wrong name", func(cfg *Config) {
			cfg.Servers = []string{strings.Replace(z.SecureAddr(), "127.0.0.1", "localhost", 1)}
		}, "localhost"},
		{"wrong name, given", func(cfg *Config) { cfg.TLS.ServerName = "zookeeper.example" }, "zookeeper.example"},
		{"plain server", func(cfg *Config) { cfg.Servers = z.Hosts() }, "TLS"},
		{"plain client", func(cfg *Config) { cfg.TLS = nil }, "no answer to the connect|it speaks TLS"}, // as the server chooses
		{"old version", func(cfg *Config) { cfg.TLS.MinVersion = tls.VersionTLS11 }, "TLS 1.1"},
		{"another subject", func(cfg *Config) { cfg.TLS = ca.Client("other") }, "not permitted"},
	} {
		cfg := cfg
		cfg.TLS, cfg.OpenTimeout = cfg.TLS.Clone(), 4*time.Second
		tt.change(&cfg)
		wg.Go(func() {
			c, err := Open(bounded(t), cfg)
			if err == nil {
				c.Abandon()
				t.Errorf("%s: Open() succeeded", tt.name)
				return
			}
			said := slices.ContainsFunc(strings.Split(tt.want, "|"), func(want string) bool { return strings.Contains(err.Error(), want) })
			if !said || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: Open() = %q, want one line that says %q", tt.name, err, tt.want)
			}
			t.Log(err)
		})
	}
}

// A client that presents a certificate wants to be known by it. Servers that do
// not ask for one know nobody, and nothing is made that anybody could delete.
func TestTLSIdentityIgnored(t *testing.T) {
	t.Parallel()
	ca := testserver.NewAuthority(t)
	z := testserver.StartSecureZooKeeper(t, ca, testserver.WithConfig("ssl.clientAuth=none"))
	cfg := config(t, z.SecureAddr())
	cfg.TLS = ca.Client("payments")
	if _, err := Open(bounded(t), cfg); !errors.Is(err, zk.ErrInvalidACL) || !strings.Contains(err.Error(), "not authenticated this client") {
		t.Errorf("Open() = %v, want %v", err, zk.ErrInvalidACL)
	}
	// With credentials besides, or without a certificate, it is as it was asked for.
	for _, change := range []func(*Config){
		func(cfg *Config) { cfg.Credentials = []Credential{mine} },
		func(cfg *Config) { cfg.TLS = ca.Client("") },
	} {
		cfg := cfg
		cfg.Chroot = testserver.Chroot(t)
		change(&cfg)
		taken(t, open(t, cfg), newID()).ReleaseInBackground()
	}
}

// A server that accepts and then says nothing is left for another one, though
// the handshake that hangs is that of TLS.
func tlsHandshakeStalls(t *testing.T, ca *testserver.Authority, z *testserver.SecureZooKeeper) {
	mute, good := testserver.StartProxy(t, z.SecureAddr()), testserver.StartProxy(t, z.SecureAddr())
	mute.StallAccept(true)
	cfg := config(t, mute.Addr(), good.Addr())
	cfg.TLS, cfg.SessionTimeout = ca.Client("payments"), 10*time.Second
	c := open(t, cfg)
	lease := taken(t, c, newID())
	s, before := sessionOf(c), mute.Accepted()
	until(t, "mute server tried again", func() bool {
		good.Cut()
		until(t, "connected again", func() bool { return c.Locker().Ping(bounded(t)) == nil })
		return mute.Accepted() > before
	})
	if sessionOf(c) != s {
		t.Error("the session did not outlive the stall")
	}
	if _, err := lease.Check(bounded(t)); err != nil {
		t.Errorf("Check() = %v, want a held lease", err)
	}
	if err := c.Close(bounded(t)); err != nil {
		t.Errorf("Close() = %v", err)
	}
}
