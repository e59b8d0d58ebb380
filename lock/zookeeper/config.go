package zookeeper

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
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

	// Home is the parent of the package's own znodes, namely session members and
	// the lock domain. Instances with the same Root need the same Home. With
	// different homes they would still exclude each other, but they would have
	// different lock domains. An instance would then take the open records of the
	// others for records of a foreign domain. The znode "home" below Root keeps
	// the Home in use. If it differs, Open returns an error that wraps
	// ErrHomeMismatch. The default is "/idem".
	Home string

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

// RetryPolicy is exponential back-off with jitter. Before each try it waits for a random
// time between half of a pause and the whole of it, and the pause doubles from First up to
// Max.
type RetryPolicy struct {
	First time.Duration // 100 ms by default
	Max   time.Duration // 5 s by default

	// Attempts bounds how often a blocking call takes a place in line before it fails
	// with driver.ErrUnavailable. Waiting for a held lock uses no attempt up. By default
	// the call tries until its context ends. Attempts does not bound the attempts at a
	// new session. Those end with Close.
	Attempts int
}
