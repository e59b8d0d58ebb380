package zookeeper

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestOpenFailsInTime(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)[0]
	for _, tt := range []struct {
		name string
		cfg  func(t *testing.T, cfg *Config)
		want string
		down bool // another try may find it otherwise
	}{
		{"nobody listens", func(t *testing.T, cfg *Config) {
			p := testserver.StartZooKeeperProxy(t, server)
			p.Refuse(true)
			cfg.Servers = []string{p.Addr()}
		}, "refused", true},
		{"stall before the handshake", func(t *testing.T, cfg *Config) {
			p := testserver.StartZooKeeperProxy(t, server)
			p.StallAccept(true)
			cfg.Servers = []string{p.Addr()}
		}, "no answer to the connect", true},
		{"stall in the handshake", func(t *testing.T, cfg *Config) {
			cfg.Servers = []string{listening(t, func(c net.Conn) { // the length of an answer, and no more
				_, _ = c.Write([]byte{0, 0, 0, 37})
				_, _ = io.Copy(io.Discard, c)
			})}
		}, "no answer to the connect", true},
		{"not a ZooKeeper", func(t *testing.T, cfg *Config) {
			cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
				a, b := net.Pipe()
				go func() {
					defer b.Close()
					_, _ = b.Read(make([]byte, 512))
					_, _ = b.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
				}()
				return a, nil
			}
		}, "no ZooKeeper server", false},
		{"TLS only", func(t *testing.T, cfg *Config) {
			cfg.Servers = []string{listening(t, func(c net.Conn) {
				_, _ = c.Read(make([]byte, 512))
				_, _ = c.Write([]byte{21, 3, 3, 0, 2, 2, 80})
				_, _ = io.Copy(io.Discard, c)
			})}
		}, "it speaks TLS, and Config.TLS is not set", false},
		{"one bad name", func(t *testing.T, cfg *Config) { cfg.Servers = []string{"no-such-host.invalid:2181"} }, "no-such-host", true},
		{"session too short", func(t *testing.T, cfg *Config) {
			cfg.SessionTimeout, cfg.TickTime = 2*time.Second, 2*time.Second
		}, "too short", false},
		{"session granted too short", func(t *testing.T, cfg *Config) {
			cfg.SessionTimeout, cfg.TickTime = 300*time.Second, 40*time.Second // the server allows 60 s
		}, "too short", false},
		{"no servers", func(t *testing.T, cfg *Config) { cfg.Servers = nil }, "no servers", false},
		{"bad chroot", func(t *testing.T, cfg *Config) { cfg.Chroot = "relative" }, "not an absolute path", false},
		{"bad credential scheme", func(t *testing.T, cfg *Config) {
			cfg.Credentials = []Credential{{Scheme: "no-such-scheme", Secret: []byte("s3cret")}}
		}, "credential", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := sharedConfig(t)
			cfg.OpenTimeout = 5 * time.Second
			tt.cfg(t, &cfg)
			began := time.Now()
			c, err := Open(bounded(t), cfg)
			if err == nil {
				c.Abandon()
				t.Fatal("Open() succeeded")
			}
			if !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("Open() = %q, want it to say %q", err, tt.want)
			}
			if down := errors.Is(err, driver.ErrUnavailable); down != tt.down {
				t.Errorf("Open() = %q, wraps %q: %t, want %t", err, driver.ErrUnavailable, down, tt.down)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("Open() took %v", took)
			}
		})
	}
}

func TestOpenEndsWithItsContext(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	p := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
	p.StallAccept(true)
	cfg.Servers = []string{p.Addr()}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		until(t, "connected", func() bool { return p.Accepted() > 0 })
		cancel()
	}()
	if _, err := Open(ctx, cfg); !errors.Is(err, context.Canceled) {
		t.Errorf("Open() = %v, want %v", err, context.Canceled)
	}
}

// A bad name does no harm beside a good one.
func TestOpenSkipsBadServers(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	cfg.Servers = append([]string{"no-such-host.invalid:2181", "127.0.0.1:1"}, cfg.Servers...)
	if err := open(t, cfg).Locker().Ping(bounded(t)); err != nil {
		t.Errorf("Ping() = %v", err)
	}
}

// A client does not open if it cannot read the lock domain. It does without the znode of the base,
// which it may not read either.
func TestDomainThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, path string
		data       string
		acl        []zk.ACL
		open       bool
		err        error
	}{
		{"an empty domain", "/idem/domain", "", zk.WorldACL(zk.PermAll), false, nil},
		{"a hidden domain", "/idem/domain", "x", zk.DigestACL(zk.PermAll, "other", "secret"), false, ErrNotPermitted},
		{"a hidden home", "/lock/home", "x", zk.DigestACL(zk.PermAll, "other", "secret"), true, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cfg := sharedConfig(t)
			raw, path := rawConn(t, cfg.Servers), cfg.Chroot+tt.path
			create(t, raw, cfg.Chroot, 0)
			create(t, raw, path[:strings.LastIndexByte(path, '/')], 0)
			if _, err := raw.Create(path, []byte(tt.data), 0, tt.acl); err != nil {
				t.Fatal(err)
			}
			c, err := Open(bounded(t), cfg)
			if err == nil {
				defer c.Abandon()
			}
			switch {
			case (err == nil) != tt.open:
				t.Errorf("Open() = %v, want it to succeed: %t", err, tt.open)
			case tt.open:
			case errors.Is(err, driver.ErrUnavailable), tt.err != nil && !errors.Is(err, tt.err), !strings.Contains(err.Error(), path):
				t.Errorf("Open() = %v, want %v that names %s", err, tt.err, path)
			}
		})
	}
}

// A client that may not make the root opens. Its locks say why they cannot be had.
func TestRootThatMayNotBeMade(t *testing.T) {
	t.Parallel()
	cfg := sharedConfig(t)
	raw := rawConn(t, cfg.Servers)
	create(t, raw, cfg.Chroot, 0)
	create(t, raw, cfg.Chroot+"/idem", 0)
	if _, err := raw.SetACL(cfg.Chroot, zk.WorldACL(zk.PermRead), -1); err != nil {
		t.Fatal(err)
	}
	c := open(t, cfg)
	if _, err := c.Locker().TryAcquire(bounded(t), request(newID())); !errors.Is(err, ErrNotPermitted) || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("TryAcquire() = %v, want %v and %v", err, ErrNotPermitted, driver.ErrUnavailable)
	}
}

// listening serves each connection, and closes it after that.
func listening(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				serve(c)
			}()
		}
	}()
	return ln.Addr().String()
}
