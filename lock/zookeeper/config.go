package zookeeper

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/hostport"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/wire"
)

// Config says where the ensemble is and how to use it. Only Servers is
// required. [Open] copies the Config.
type Config struct {
	// Servers are "host:port" or "host" (port 2181). The client resolves the
	// names anew at every connect. If one name does not resolve, the client
	// uses the other servers. No server may be named twice.
	Servers []string

	// Chroot, such as "/payments", is put in front of every path. The client
	// creates it if it is missing. It has 200 bytes at most, and neither ',' nor
	// ':' nor white space. There is no chroot by default.
	Chroot string

	// SessionTimeout is the session time-out that the client asks for. The server
	// may grant another one. By default it grants between 2 and 20 ticks. A lock
	// outlives its crashed holder by about the session time-out. The default is
	// 10 s.
	SessionTimeout time.Duration

	// TickTime is the tickTime of the *servers*. A lease ends before its session
	// could, and TickTime is a part of that margin. If the value is too small,
	// leases are unsafe while a follower is cut off from its leader.
	//
	// The default is 2 s, as in the servers' sample configuration. If the granted
	// session is too short for 2 s, the client takes half of the shortest session
	// that a server grants. This is the server's tick, unless its
	// minSessionTimeout is set below two ticks.
	TickTime time.Duration

	// OpenTimeout bounds Open, and each later attempt at a new session. The
	// default is SessionTimeout, but at least 10 s.
	OpenTimeout time.Duration

	// Root is the parent of all locks. It has 200 bytes at most. Instances exclude
	// each other only if they have the same root. The root is part of the lock
	// domain. The default is "/lock".
	Root string

	// Base is the parent of the package's own znodes, namely session members and
	// the lock domain. Instances with the same Root need the same Base. With
	// different bases they would still exclude each other, but they would have
	// different lock domains. An instance would then take the open records of the
	// others for records of a foreign domain. The znode "base" below Root keeps
	// the Base in use. If it differs, Open returns an error that wraps
	// ErrBaseMismatch. The default is "/idem".
	Base string

	// MaxLocksPerSession bounds the locks of one Client. The transaction that
	// closes a session lists all its locks. A transaction larger than the servers'
	// jute.maxbuffer would take the ensemble down. The default is 4096.
	MaxLocksPerSession int

	// Retry says how fast the client tries to start a new session. It also says
	// how often a blocking call of a recipe, such as Mutex.Acquire, tries again
	// after it has lost its place in line. RetryPolicy has the defaults.
	Retry RetryPolicy

	// Credentials are presented to the servers before any other request. A client
	// has no credentials by default.
	Credentials []Credential

	// TLS, if set, secures the connections, with TLS 1.2 or later. If it names no
	// server, the certificate has to be for the host as listed in Servers. A
	// client certificate in it authenticates the sessions. The scheme is then
	// "x509", and the identity is the subject of the certificate. By default the
	// client does not use TLS.
	TLS *tls.Config

	// ACL is given to every znode that the client makes, parents included. It has
	// to give this client all permissions. The servers check the permission to
	// delete at the *parent*. If the world may delete there, every client of the
	// ensemble can unlock.
	//
	// The default gives all permissions to this client's own identities, which
	// come from Credentials and from a client certificate. Each of them is enough.
	// A client without an identity gives all permissions to the world. A client
	// with a certificate alone cannot open under the default if the servers do not
	// ask for the certificate, or make no identity of it.
	ACL []zk.ACL

	// Logger gets the messages for operators. The default is slog.Default().
	Logger *slog.Logger

	// Dial opens a connection to one of Servers, as listed. It is for proxies and
	// tests. The client speaks TLS, if set, over the returned connection. The
	// default is a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	now leaseclock.Source // tests set their own
}

// WithClock is the configuration with another lease clock, which returns the time since a moment of
// its own, and has to be safe for concurrent use. It is for tests and simulations.
func (c Config) WithClock(now func() time.Duration) Config {
	c.now = func() leaseclock.Instant { return leaseclock.Instant{}.Add(now()) }
	return c
}

// Credential is an identity, such as "user:password" with the scheme "digest". It keeps
// its secret out of logs.
type Credential struct {
	Scheme string
	Secret []byte
}

// LogValue keeps the secret out of logs.
func (c Credential) LogValue() slog.Value { return slog.StringValue(c.String()) }

// String keeps the secret out of logs.
func (c Credential) String() string { return session.Credential(c).String() }

// credentials are those of the sessions.
func (c *Config) credentials() (all []session.Credential) {
	for _, cred := range c.Credentials {
		all = append(all, session.Credential(cred))
	}
	return all
}

// ParseConnectString reads ZooKeeper's usual notation, "host:port,host:port/chroot", into Servers
// and Chroot. White space around the servers and the whole string does not count. The chroot comes
// once, after the last server. A string such as "h1:2181/a,h2:2181/a" is refused, because it would
// name the chroot "/a,h2:2181/a", and the locks of such a client would not exclude those of a client
// with the right one. A list that names a server twice is refused, because one of the two is probably
// another server.
func ParseConnectString(s string) (servers []string, chroot string, err error) {
	hosts := strings.TrimSpace(s)
	if i := strings.IndexByte(hosts, '/'); i >= 0 {
		hosts, chroot = hosts[:i], strings.TrimRight(hosts[i:], "/")
	}
	for host := range strings.SplitSeq(hosts, ",") {
		host = strings.TrimSpace(host)
		if host == "" {
			return nil, "", fmt.Errorf("zookeeper: connect string %q names an empty host", s)
		}
		servers = append(servers, host)
	}
	if _, err := withPorts(servers); err != nil {
		return nil, "", err
	}
	if err := checkChroot(chroot); err != nil {
		return nil, "", err
	}
	return servers, chroot, nil
}

// withPorts returns a list of servers as "host:port".
func withPorts(servers []string) ([]string, error) {
	var all []string
	for _, server := range servers {
		full, err := withPort(server)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(other string) bool { return strings.EqualFold(other, full) }) {
			return nil, fmt.Errorf("zookeeper: the list of servers names %s twice", full)
		}
		all = append(all, full)
	}
	return all, nil
}

// withPort returns a server as "host:port". The default port is 2181.
func withPort(server string) (string, error) {
	host, port, err := net.SplitHostPort(server)
	if err != nil { // no port, or a host that needs brackets
		host, port = server, strconv.Itoa(zk.DefaultPort)
		if inner, ok := strings.CutPrefix(server, "["); ok && strings.HasSuffix(inner, "]") {
			host = strings.TrimSuffix(inner, "]")
		} else if strings.Contains(server, ":") {
			return "", fmt.Errorf("zookeeper: server %q: want HOST, HOST:PORT, [IPV6] or [IPV6]:PORT", server)
		}
	}
	if err := hostport.Check(host, port); err != nil {
		return "", fmt.Errorf("zookeeper: server %q: %w", server, err)
	}
	return net.JoinHostPort(host, port), nil
}

// checkChroot refuses what is no path, what looks like a part of a list of servers, and white space,
// which nobody sees at the end of a variable. Each would name the locks of another chroot.
func checkChroot(chroot string) error {
	if strings.ContainsAny(chroot, ",:") {
		return fmt.Errorf("zookeeper: chroot %q has ',' or ':'; the chroot comes once, after the last server, as in \"h1:2181,h2:2181/chroot\"", chroot)
	}
	if strings.ContainsFunc(chroot, unicode.IsSpace) {
		return fmt.Errorf("zookeeper: chroot %q has white space", chroot)
	}
	if len(chroot) > maxRoot {
		return fmt.Errorf("zookeeper: chroot has %d bytes, at most %d are allowed", len(chroot), maxRoot)
	}
	return held.CheckPath("chroot", chroot, true)
}

const (
	defaultRoot = "/lock"
	// maxRoot is for the root and for the chroot. The lock domain, which has the root, goes into
	// every record, and the transaction that closes a session lists every lock with both.
	maxRoot = 200
)

// withDefaults returns a checked copy with nothing left unset.
func (c Config) withDefaults() (Config, error) {
	if len(c.Servers) == 0 {
		return c, errors.New("zookeeper: config names no servers")
	}
	servers, err := withPorts(c.Servers)
	if err != nil {
		return c, err
	}
	c.Servers = servers
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
	if err := session.CheckTimeout(c.SessionTimeout, c.TickTime); err != nil { // never without a TickTime
		return c, err
	}
	c.Chroot = strings.TrimRight(c.Chroot, "/")
	if err := errors.Join(checkChroot(c.Chroot), held.CheckPath("root", c.Root, false), held.CheckPath("base", c.Base, false)); err != nil {
		return c, err
	}
	if len(c.Root) > maxRoot {
		return c, fmt.Errorf("zookeeper: root has %d bytes, at most %d are allowed", len(c.Root), maxRoot)
	}
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
	Base time.Duration // 100 ms by default
	Max  time.Duration // 5 s by default

	// Attempts bounds how often a blocking call takes a place in line before it fails
	// with driver.ErrUnavailable. Waiting for a held lock uses no attempt up. By default
	// the call tries until its context ends. Attempts does not bound the attempts at a
	// new session. Those end with Close.
	Attempts int
}

// lockPath is the path of a key's lock. It has two levels, because the child counter of one
// flat parent of all locks would overflow (see doc.go).
func (c *Config) lockPath(id driver.KeyID) string {
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

// basePath is the znode by which the clients of a root agree on Config.Base. No parent of
// locks has this name.
func (c *Config) basePath() string { return c.rootPath() + "/base" }
