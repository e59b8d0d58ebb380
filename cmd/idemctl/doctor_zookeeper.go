package main

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// checkZooKeeper checks each server, and then a session. client is nil if there is no
// session.
func (a *app) checkZooKeeper(ctx context.Context, r *report, servers []string, chroot string) (client *zookeeper.Client, clocks []clockReading) {
	probes := make([]probe, len(servers))
	var wg sync.WaitGroup
	for i, server := range servers {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, serverCheck)
			defer cancel()
			probes[i] = a.probeServer(ctx, withPort(server))
		})
	}
	wg.Wait()
	serving := 0
	for _, p := range probes {
		r.checkServer(&p)
		if p.err == nil {
			serving++
		}
	}
	n := len(servers)
	r.gradef(n >= 3 && n%2 == 1, "zookeeper-servers", "%d named; with three one may fail, and with five two", n)
	if serving == 0 {
		return nil, nil
	}
	r.checkSession(probes, a.sessionTimeout)
	parent, used := a.checkUsed(ctx, r, probes, chroot)
	if used {
		client = a.checkQuorum(ctx, r)
	}
	if client != nil {
		checkACL(ctx, r, client)
	}
	return client, a.leaderClock(ctx, r, probes, parent)
}

// checkUsed looks for the znodes that a session of the library would create. parent is
// the deepest existing one.
func (a *app) checkUsed(ctx context.Context, r *report, probes []probe, chroot string) (parent string, used bool) {
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
			missing, err = a.firstMissing(call, probes[i].addr, wanted)
			cancel()
		}
	}
	switch {
	case err != nil:
		r.failf("zookeeper-write", "not checked: %v", err)
		return chroot + base, false
	case missing == "":
		return chroot + base, true
	}
	r.warnf("zookeeper-write", "no service has used this ensemble, or this chroot: there is no %s, and doctor does not create it", missing)
	return missing[:strings.LastIndexByte(missing, '/')], false
}

// leaderClock reads the leader's clock from the first server that tells it.
func (a *app) leaderClock(ctx context.Context, r *report, probes []probe, parent string) []clockReading {
	for _, p := range probes {
		if p.err != nil {
			continue
		}
		call, cancel := context.WithTimeout(ctx, serverCheck)
		clock, err := a.zooKeeperClock(call, p.addr, parent)
		cancel()
		if err == nil {
			return []clockReading{clock}
		}
		r.warnf("clock-skew", "ZooKeeper %s does not tell its time: %v", p.addr, err)
	}
	return nil
}

func withPort(server string) string {
	if _, _, err := net.SplitHostPort(server); err == nil {
		return server
	}
	return net.JoinHostPort(strings.Trim(server, "[]"), "2181")
}

func (r *report) checkServer(p *probe) {
	if p.err != nil {
		r.failf("zookeeper", "%s: %v", p.addr, p.err)
		return
	}
	r.okf("zookeeper", "%s serves, within %v", p.addr, p.took.Round(time.Microsecond))
	r.gradef(p.version != "", "zookeeper-version", "%s is %s", p.addr, p.about())
}

// about is the version and mode of a server.
func (p *probe) about() string {
	if p.version == "" {
		return "unknown, because the server does not answer srvr"
	}
	return p.version + ", " + p.mode
}

func (r *report) checkSession(probes []probe, asked time.Duration) {
	for _, p := range probes {
		if p.err == nil && p.granted != asked {
			r.warnf("zookeeper-session", "%s grants %v instead of %v, because of the servers' tickTime or limits", p.addr, p.granted, asked)
			return
		}
	}
	r.okf("zookeeper-session", "%v is granted", asked)
}

// checkQuorum starts a session like a service, and writes.
func (a *app) checkQuorum(ctx context.Context, r *report) *zookeeper.Client {
	const check = "zookeeper-write"
	opening, cancel := context.WithTimeout(ctx, sessionCheck)
	defer cancel()
	client, _, err := a.openZooKeeper(opening, discard)
	switch {
	case errors.Is(err, zookeeper.ErrNotPermitted):
		r.warnf(check, "not checked: %v; see --zookeeper-auth", err)
		return nil
	case err != nil:
		r.failf(check, "no session: %v", err)
		return nil
	}
	sent := time.Now()
	if err := client.Locker().Ping(opening); err != nil {
		r.failf(check, "%v", err)
	} else {
		r.okf(check, "the quorum takes a write within %v", time.Since(sent).Round(time.Microsecond))
	}
	r.okf("lock-domain", "%s", client.Domain())
	return client
}

// checkACL names the znodes where any client may delete locks. It only counts the
// parents of locks, because there can be thousands.
func checkACL(ctx context.Context, r *report, client *zookeeper.Client) {
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
		r.warnf(check, "any client can delete locks: open to the world are %s, and %d below /lock", strings.Join(named, " "), shards)
	case errors.Is(err, zookeeper.ErrNotPermitted):
		r.warnf(check, "not all checked: %v", err)
	case err != nil:
		r.warnf(check, "not checked: %v", err)
	default:
		r.okf(check, "no znode of the locks is open to the world")
	}
}
