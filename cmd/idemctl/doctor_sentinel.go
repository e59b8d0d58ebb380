package main

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// checkSentinels asks each of them for the primary, where --redis names any, and
// returns those that answered.
func (a *app) checkSentinels(ctx context.Context, r *report) (answering []string) {
	const check = "sentinel"
	addrs, master := sentinels(a.redis)
	first := ""
	for _, addr := range addrs {
		primary, err := askSentinel(ctx, addr, master)
		switch {
		case err != nil:
			r.failf(check, "%s: %v", addr, err)
			continue
		case first != "" && primary != first:
			r.warnf(check, "%s takes %s for the primary of %s, another one %s", addr, primary, master, first)
		default:
			r.okf(check, "%s: the primary of %s is %s", addr, master, primary)
			first = primary
		}
		answering = append(answering, addr)
	}
	return answering
}

// askSentinel asks one sentinel for the address of a primary.
func askSentinel(ctx context.Context, addr, master string) (primary string, err error) {
	err = withSentinel(ctx, addr, func(ctx context.Context, s *goredis.SentinelClient) error {
		at, err := s.GetMasterAddrByName(ctx, master).Result()
		primary = strings.Join(at, ":")
		return err
	})
	return primary, err
}

func withSentinel(ctx context.Context, addr string, f func(context.Context, *goredis.SentinelClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client := goredis.NewSentinelClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, DialerRetries: 1})
	defer func() { _ = client.Close() }()
	return f(ctx, client)
}

// checkSentinelReplicas looks at the replicas that a sentinel knows: one of them is the next primary. like is a client of the primary.
// A replica that is gone for good stays with the sentinels: it is a warning.
func (a *app) checkSentinelReplicas(ctx context.Context, r *report, addrs []string, like *goredis.Client) []nodeReport {
	_, master := sentinels(a.redis)
	var known []map[string]string
	for _, addr := range addrs {
		err := withSentinel(ctx, addr, func(ctx context.Context, s *goredis.SentinelClient) (err error) {
			known, err = s.Replicas(ctx, master).Result()
			return err
		})
		if err == nil {
			break
		}
	}
	looks := make([]*nodeReport, len(known))
	var wg sync.WaitGroup
	for i, replica := range known {
		o := like.Options()
		node := goredis.NewClient(&goredis.Options{
			Addr: net.JoinHostPort(replica["ip"], replica["port"]), Username: o.Username, Password: o.Password, DB: o.DB, TLSConfig: o.TLSConfig,
			ContextTimeoutEnabled: true, MaxRetries: -1, DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second,
			DialerRetries: 1, MaintNotificationsConfig: o.MaintNotificationsConfig,
		})
		wg.Go(func() {
			defer func() { _ = node.Close() }()
			n := checkReplica(ctx, node)
			looks[i] = &n
		})
	}
	wg.Wait()
	var all []nodeReport
	for _, n := range looks {
		if n.clocks == nil {
			r.warnf("redis", "%s, a replica that the sentinels know, does not answer", n.addr)
			continue
		}
		all = append(all, *n)
	}
	return all
}

// sentinels takes redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/MASTER
// apart, which the store's own client has accepted.
func sentinels(url string) (addrs []string, master string) {
	rest, found := strings.CutPrefix(url, "redis+sentinel://")
	if !found {
		return nil, ""
	}
	hosts, path, _ := strings.Cut(rest, "/")
	hosts = hosts[strings.LastIndexByte(hosts, '@')+1:]
	for host := range strings.SplitSeq(hosts, ",") {
		host = strings.TrimSpace(host)
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), "26379")
		}
		addrs = append(addrs, host)
	}
	master, _, _ = strings.Cut(path, "/")
	return addrs, master
}
