package main

import (
	"context"
	"net"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// checkSentinels asks each of them for the primary, where --redis names any.
func (a *app) checkSentinels(ctx context.Context, r *report) {
	const check = "sentinel"
	addrs, master := sentinels(a.redis)
	first := ""
	for _, addr := range addrs {
		primary, err := askSentinel(ctx, addr, master)
		switch {
		case err != nil:
			r.failf(check, "%s: %v", addr, err)
		case first != "" && primary != first:
			r.warnf(check, "%s takes %s for the primary of %s, another one %s", addr, primary, master, first)
		default:
			r.okf(check, "%s: the primary of %s is %s", addr, master, primary)
			first = primary
		}
	}
}

// askSentinel asks one sentinel for the address of a primary.
func askSentinel(ctx context.Context, addr, master string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	client := goredis.NewSentinelClient(&goredis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1,
		DialTimeout: time.Second, ReadTimeout: time.Second, WriteTimeout: time.Second, DialerRetries: 1})
	defer func() { _ = client.Close() }()
	at, err := client.GetMasterAddrByName(ctx, master).Result()
	if err != nil {
		return "", err
	}
	return strings.Join(at, ":"), nil
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
