package doctor

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// ensembleCheck checks the servers of --zookeeper.
type ensembleCheck struct {
	*report

	flags *servers.ZooKeeper
}

// check checks each server, and then a session. client is nil if there is no
// session.
func (c *ensembleCheck) check(ctx context.Context, addrs []string, chroot string) (client *zookeeper.Client, clocks []clockReading) {
	probes := make([]probe, len(addrs))
	var wg sync.WaitGroup
	for i, server := range addrs {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, serverCheck)
			defer cancel()
			probes[i] = dialer{c.flags}.probe(ctx, withPort(server))
		})
	}
	wg.Wait()
	serving := 0
	for _, p := range probes {
		c.checkServer(&p)
		if p.err == nil {
			serving++
		}
	}
	n := len(addrs)
	c.gradef(n >= 3 && n%2 == 1, "zookeeper-servers", "%d named; with three one may fail, and with five two", n)
	if serving == 0 {
		return nil, nil
	}
	c.checkSession(probes, c.flags.SessionTimeout)
	parent, used := c.checkUsed(ctx, probes, chroot)
	if used {
		client = c.checkQuorum(ctx)
	}
	if client != nil {
		c.checkACL(ctx, client)
	}
	return client, c.leaderClock(ctx, probes, parent)
}

// checkUsed looks for the znodes that a session of the library would create. parent is
// the deepest existing one.
func (c *ensembleCheck) checkUsed(ctx context.Context, probes []probe, chroot string) (parent string, used bool) {
	const base = "/idem"
	var wanted []string
	for i, c := range chroot + base + "/" {
		if c == '/' && i > 0 {
			wanted = append(wanted, (chroot + base)[:i])
		}
	}
	wanted = append(wanted, chroot+base+"/members", chroot+base+"/domain")
	missing, err := "", errors.New("no server")
	for i := 0; err != nil && i < len(probes); i++ {
		if probes[i].err == nil {
			call, cancel := context.WithTimeout(ctx, serverCheck)
			missing, err = dialer{c.flags}.firstMissing(call, probes[i].addr, wanted)
			cancel()
		}
	}
	switch {
	case err != nil:
		c.failf("zookeeper-write", "not checked: %v", err)
		return chroot + base, false
	case missing == "":
		return chroot + base, true
	}
	c.warnf("zookeeper-write", "no service has used this ensemble, or this chroot: there is no %s, and doctor does not create it", missing)
	return missing[:strings.LastIndexByte(missing, '/')], false
}

// leaderClock reads the leader's clock from the first server that tells it.
func (c *ensembleCheck) leaderClock(ctx context.Context, probes []probe, parent string) []clockReading {
	for _, p := range probes {
		if p.err != nil {
			continue
		}
		call, cancel := context.WithTimeout(ctx, serverCheck)
		clock, err := dialer{c.flags}.clock(call, p.addr, parent)
		cancel()
		if err == nil {
			return []clockReading{clock}
		}
		c.warnf("clock-skew", "ZooKeeper %s does not tell its time: %v", p.addr, err)
	}
	return nil
}

func withPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(strings.Trim(server, "[]"), "2181")
}

func (c *ensembleCheck) checkServer(p *probe) {
	if p.err != nil {
		c.failf("zookeeper", "%s: %v", p.addr, p.err)
		return
	}
	c.okf("zookeeper", "%s serves, within %v", p.addr, p.took.Round(time.Microsecond))
	c.gradef(p.version != "", "zookeeper-version", "%s is %s", p.addr, p.about())
}

// about is the version and mode of a server.
func (p *probe) about() string {
	if p.version == "" {
		return "unknown, because the server does not answer srvr"
	}
	return p.version + ", " + p.mode
}

func (c *ensembleCheck) checkSession(probes []probe, asked time.Duration) {
	for _, p := range probes {
		if p.err == nil && p.granted != asked {
			c.warnf("zookeeper-session", "%s grants %v instead of %v, because of the servers' tickTime or limits", p.addr, p.granted, asked)
			return
		}
	}
	c.okf("zookeeper-session", "%v is granted", asked)
}

// checkQuorum starts a session like a service, and writes.
func (c *ensembleCheck) checkQuorum(ctx context.Context) *zookeeper.Client {
	const check = "zookeeper-write"
	opening, cancel := context.WithTimeout(ctx, sessionCheck)
	defer cancel()
	client, _, err := c.flags.Open(opening)
	switch {
	case errors.Is(err, zookeeper.ErrNotPermitted):
		c.warnf(check, "not checked: %v; see --zookeeper-auth", err)
		return nil
	case err != nil:
		c.failf(check, "no session: %v", err)
		return nil
	}
	sent := time.Now()
	if err := client.Locker().Ping(opening); err != nil {
		c.failf(check, "%v", err)
	} else {
		c.okf(check, "the quorum takes a write within %v", time.Since(sent).Round(time.Microsecond))
	}
	c.okf("lock-domain", "%s", client.Domain())
	return client
}

// checkACL names the znodes where any client may delete locks. It only counts the
// parents of locks, because there can be thousands.
func (c *ensembleCheck) checkACL(ctx context.Context, client *zookeeper.Client) {
	const check = "zookeeper-acl"
	ctx, cancel := context.WithTimeout(ctx, serverCheck)
	defer cancel()
	open, err := client.OpenParents(ctx)
	switch {
	case len(open) > 0:
		var named []string
		shards := 0
		for _, znode := range open {
			if parent := znode[:strings.LastIndexByte(znode, '/')]; strings.HasSuffix(parent, "/lock") {
				shards++
			} else {
				named = append(named, znode)
			}
		}
		c.warnf(check, "any client can delete locks: open to the world are %s, and %d below /lock", strings.Join(named, " "), shards)
	case errors.Is(err, zookeeper.ErrNotPermitted):
		c.warnf(check, "not all checked: %v", err)
	case err != nil:
		c.warnf(check, "not checked: %v", err)
	default:
		c.okf(check, "no znode of the locks is open to the world")
	}
}
