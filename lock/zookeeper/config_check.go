package zookeeper

import (
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

	"github.com/idemkeeper/idemkeeper/internal/hostport"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/wire"
)

const (
	defaultRoot = "/lock"
	// maxRoot is for the root and for the chroot. The lock domain, which has the root, goes into
	// every record, and the transaction that closes a session lists every lock with both.
	maxRoot = 200
)

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
		servers = append(servers, strings.TrimSpace(host))
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
	defaultTo(&c.Home, "/idem")
	defaultTo(&c.MaxLocksPerSession, 4096)
	defaultTo(&c.Logger, slog.Default())
	defaultTo(&c.Retry.First, 100*time.Millisecond)
	defaultTo(&c.Retry.Max, max(c.Retry.First, 5*time.Second))
	if min(c.SessionTimeout, c.TickTime, c.OpenTimeout, c.Retry.First, c.Retry.Max) < 0 || min(c.MaxLocksPerSession, c.Retry.Attempts) < 0 {
		return c, errors.New("zookeeper: config has a negative value")
	}
	if c.Retry.Max < c.Retry.First {
		return c, errors.New("zookeeper: retry policy has a Max below its First")
	}
	if err := session.CheckTimeout(c.SessionTimeout, c.TickTime); err != nil { // never without a TickTime
		return c, err
	}
	c.Chroot = strings.TrimRight(c.Chroot, "/")
	if err := errors.Join(checkChroot(c.Chroot), held.CheckPath("root", c.Root, false), held.CheckPath("home", c.Home, false)); err != nil {
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
