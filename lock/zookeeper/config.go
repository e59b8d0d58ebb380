package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/wire"
)

// Config says where the ensemble is and how to use it. Only Servers is
// required. A Config is copied by [Open].
type Config struct {
	// Servers are "host:port" or "host" (port 2181). Names are resolved anew
	// at every connect, and one that does not resolve harms none of the others.
	Servers []string

	// Chroot is put in front of every path, such as "/payments". It is created
	// when missing. Default: none.
	Chroot string

	// SessionTimeout is asked for; the server has the last word (between 2 and
	// 20 ticks, unless it was told otherwise). A lock outlives its crashed
	// holder by about this long. Default: 10 s.
	SessionTimeout time.Duration

	// TickTime is the tickTime of the *servers*. It goes into the margin by
	// which a lease ends before its session could: too small a value here makes
	// leases unsafe when a follower is cut off from its leader. Default: 2 s,
	// which is what the servers' sample configuration has; where the session that
	// the servers grant is too short for that, half of the shortest session that
	// a server grants, which is its tick unless its minSessionTimeout is set below
	// two ticks.
	TickTime time.Duration

	// OpenTimeout bounds Open, and each later attempt at a new session.
	// Default: SessionTimeout, and at least 10 s.
	OpenTimeout time.Duration

	// Root is the parent of all locks, of 200 bytes at most. Instances that are
	// to exclude each other need the same; it is part of the lock domain.
	// Default: "/lock".
	Root string

	// Base is the parent of what this package keeps for itself: session
	// members and the lock domain. Instances with the same Root need the same:
	// with another one they would exclude each other, and each would take what
	// the others left open for that of a foreign domain. The znode "base" below
	// Root keeps it, and Open returns an error that wraps ErrBaseMismatch where
	// they differ. Default: "/idem".
	Base string

	// MaxLocksPerSession bounds the locks of one Client, because the
	// transaction that closes a session lists them all; past the server's
	// jute.maxbuffer it would take the ensemble down. Default: 4096.
	MaxLocksPerSession int

	// Retry is how often and how fast the client starts a new session, and how
	// often a blocking call of a recipe, such as [Mutex.Acquire], tries again
	// when it has lost its place in line. Default: see RetryPolicy.
	Retry RetryPolicy

	// Credentials are presented to the servers before anything else is done.
	// Default: none.
	Credentials []Credential

	// TLS, if set, is what the connections are secured with: at least TLS 1.2.
	// Where it names no server, the certificate has to be for the host as it is
	// listed in Servers. A client certificate in it authenticates the sessions
	// (scheme "x509", the identity being the certificate's subject). Default:
	// no TLS.
	TLS *tls.Config

	// ACL is given to every znode made, parents included; it has to leave this
	// client all permissions. Deleting is checked at the *parent*: where the
	// world may, anybody who reaches the ensemble can unlock. Default:
	// everything to whoever this client is, by Credentials or by a client
	// certificate, each of them being enough; to the world when it has neither.
	// A client that presents a certificate which the servers do not ask for, or
	// do not make an identity of, cannot open with that.
	ACL []zk.ACL

	// Logger gets what operators should know. Default: slog.Default().
	Logger *slog.Logger

	// Dial opens a connection to one of Servers, as listed: for proxies and
	// tests. TLS, if set, is spoken over what it returns. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	now leaseclock.Source // tests set their own
}

// WithClock is the configuration with another lease clock. It is for tests.
func (c Config) WithClock(now leaseclock.Source) Config {
	c.now = now
	return c
}

// Credential is an identity, such as scheme "digest" with "user:password". It keeps its
// secret out of logs.
type Credential = session.Credential

// ParseConnectString reads ZooKeeper's usual notation,
// "host:port,host:port/chroot", into Servers and Chroot.
func ParseConnectString(s string) (servers []string, chroot string, err error) {
	hosts := s
	if i := strings.IndexByte(s, '/'); i >= 0 {
		hosts, chroot = s[:i], strings.TrimRight(s[i:], "/")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if host = strings.TrimSpace(host); host == "" {
			return nil, "", fmt.Errorf("zookeeper: connect string %q names an empty host", s)
		}
		servers = append(servers, host)
	}
	if err := held.CheckPath("chroot", chroot, true); err != nil {
		return nil, "", err
	}
	return servers, chroot, nil
}

const (
	defaultRoot = "/lock"
	maxRoot     = 200 // the lock domain, a UUID and the root, goes into every record
)

// withDefaults returns a checked copy with nothing left unset.
func (c Config) withDefaults() (Config, error) {
	c.Servers = append([]string(nil), c.Servers...)
	if len(c.Servers) == 0 {
		return c, errors.New("zookeeper: config names no servers")
	}
	for i, s := range c.Servers {
		if s == "" {
			return c, errors.New("zookeeper: config names an empty server")
		}
		if _, _, err := net.SplitHostPort(s); err != nil {
			c.Servers[i] = net.JoinHostPort(strings.Trim(s, "[]"), fmt.Sprint(zk.DefaultPort))
		}
	}
	defaultTo(&c.SessionTimeout, 10*time.Second)
	defaultTo(&c.OpenTimeout, max(c.SessionTimeout, 10*time.Second))
	defaultTo(&c.Root, defaultRoot)
	defaultTo(&c.Base, "/idem")
	defaultTo(&c.MaxLocksPerSession, 4096)
	defaultTo(&c.Logger, slog.Default())
	defaultTo(&c.Retry.Base, 100*time.Millisecond)
	defaultTo(&c.Retry.Max, max(c.Retry.Base, 5*time.Second))
	if min(c.SessionTimeout, c.TickTime, c.OpenTimeout, c.Retry.Base, c.Retry.Max) < 0 || min(c.MaxLocksPerSession, c.Retry.Attempts) < 0 {
		return c, errors.New("zookeeper: config has a negative value")
	}
	if c.Retry.Max < c.Retry.Base {
		return c, errors.New("zookeeper: retry policy has a Max below its Base")
	}
	if c.TickTime != 0 {
		if err := session.CheckTimeout(c.SessionTimeout, c.TickTime); err != nil {
			return c, err
		}
	}
	c.Chroot = strings.TrimRight(c.Chroot, "/")
	for _, p := range []struct {
		name, path string
		optional   bool
	}{{"chroot", c.Chroot, true}, {"root", c.Root, false}, {"base", c.Base, false}} {
		if err := held.CheckPath(p.name, p.path, p.optional); err != nil {
			return c, err
		}
	}
	if len(c.Root) > maxRoot {
		return c, fmt.Errorf("zookeeper: root has %d bytes, %d are the most", len(c.Root), maxRoot)
	}
	var err error
	if c.TLS, err = wire.CheckTLS(c.TLS); err != nil {
		return c, err
	}
	if len(c.ACL) == 0 {
		c.ACL = zk.WorldACL(zk.PermAll)
		if len(c.Credentials) > 0 || c.dialer().Certified() {
			c.ACL = zk.AuthACL(zk.PermAll)
		}
	}
	if c.now == nil {
		c.now = leaseclock.Now
	}
	if c.Dial == nil {
		c.Dial = new(net.Dialer).DialContext
	}
	return c, nil
}

func (c *Config) dialer() *wire.Dialer { return &wire.Dialer{Dial: c.Dial, TLS: c.TLS} }

func defaultTo[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

// RetryPolicy is exponential back-off with jitter. Before each try it waits for a random
// time between half of a pause and the whole of it, and the pause doubles from Base up to
// Max.
type RetryPolicy struct {
	Base time.Duration // default: 100 ms
	Max  time.Duration // default: 5 s

	// Attempts bounds how often a blocking call takes a place in line before it fails
	// with idem.ErrUnavailable. Waiting for a held lock uses no attempt up. It does
	// not bound the attempts at a new session, which end with Close. Default: as long
	// as the call's context lasts.
	Attempts int
}

// lockPath is where the lock of a key ID is. It has two levels, because the child counter
// of one flat parent of all locks would overflow (see doc.go).
func (c *Config) lockPath(id idem.KeyID) string {
	hex := id.String() // its first three digits name the parent
	return c.rootPath() + "/" + hex[:3] + "/" + hex[3:]
}

// rootPath is the parent of all parents of locks.
func (c *Config) rootPath() string { return c.Chroot + c.Root }

func (c *Config) membersPath() string { return c.Chroot + c.Base + "/members" }

// domainOf is the lock domain of an ensemble with this UUID. Locks under different roots
// do not exclude each other. So they must not seem to be of one domain, because the lock of
// one root proves nothing about that of the other.
func (c *Config) domainOf(uuid string) string {
	if c.Root == defaultRoot {
		return uuid
	}
	return uuid + c.Root
}

func (c *Config) domainPath() string { return c.Chroot + c.Base + "/domain" }

// basePath is where the clients of a root agree on Config.Base. No parent of locks has
// this name.
func (c *Config) basePath() string { return c.rootPath() + "/base" }
