package redisstore

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Time-outs of clients that [Connect] makes. An earlier deadline of the context wins. A
// host without a server refuses at once. The time to dial is for a host that does not
// answer, with room for one lost SYN, which is sent again after a second.
const (
	dialTimeout = 1500 * time.Millisecond
	ioTimeout   = 2 * time.Second
)

// Connect returns a client that fits [New]. It honours the deadlines of contexts, sends a
// command again once, reads from primaries only, and fails fast if no server listens.
// Every script may run twice, so sending again is safe. The client connects at first use,
// and the caller closes it. The forms of addr:
//
//	redis://[USER:PASSWORD@]HOST:PORT[/DB]     one server; rediss:// with TLS
//	redis://HOST:PORT,redis://HOST:PORT        a cluster
//	redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/MASTER[/DB]
func Connect(addr string) (goredis.UniversalClient, error) {
	o, err := parseAddr(addr)
	if err != nil {
		return nil, err
	}
	return goredis.NewUniversalClient(o), nil
}

// parseAddr reads the forms of [Connect]. Errors do not show passwords.
func parseAddr(addr string) (*goredis.UniversalOptions, error) {
	o := &goredis.UniversalOptions{
		ContextTimeoutEnabled: true,
		MaxRetries:            1,
		MinRetryBackoff:       5 * time.Millisecond,
		MaxRetryBackoff:       50 * time.Millisecond,
		DialTimeout:           dialTimeout,
		DialerRetries:         1,
		ReadTimeout:           ioTimeout,
		WriteTimeout:          ioTimeout,
		PoolTimeout:           ioTimeout,
		// Only Redis Enterprise knows them. Elsewhere each new connection would send a
		// command that fails.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	servers, port := strings.Split(addr, ","), "6379"
	if rest, ok := strings.CutPrefix(addr, "redis+sentinel://"); ok {
		hosts, path, _ := strings.Cut(rest, "/")
		name, db, _ := strings.Cut(path, "/")
		if name == "" {
			return nil, errors.New("tokenstore/redis: sentinel address without the master's name")
		}
		at := strings.LastIndexByte(hosts, '@') + 1 // the server gets user and password, and the sentinels do not
		servers, port, o.MasterName = nil, "26379", name
		for host := range strings.SplitSeq(hosts[at:], ",") {
			servers = append(servers, "redis://"+hosts[:at]+strings.TrimSpace(host)+"/"+db)
		}
	}
	for _, server := range servers {
		if err := addServer(o, strings.TrimSpace(server), port); err != nil {
			return nil, err
		}
	}
	o.IsClusterMode = len(servers) > 1 && o.MasterName == ""
	switch {
	case o.IsClusterMode && o.DB != 0:
		return nil, errors.New("tokenstore/redis: a cluster has no database but 0")
	case o.IsClusterMode && o.TLSConfig != nil:
		if strings.Count(addr, "rediss://") != len(servers) {
			return nil, errors.New("tokenstore/redis: addresses of one cluster with and without TLS")
		}
		o.TLSConfig.ServerName = "" // each connection checks the name that it dials
	}
	return o, nil
}

// addServer adds the server of a redis:// or rediss:// URL to the options.
func addServer(o *goredis.UniversalOptions, server, port string) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		// err would show the password
		return errors.New("tokenstore/redis: address: want redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss:// or redis+sentinel://, without options")
	}
	u.Host = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), port))
	one, err := goredis.ParseURL(u.String())
	if err != nil { // the database is no number
		return fmt.Errorf("tokenstore/redis: address: %w", err)
	}
	o.Addrs = append(o.Addrs, one.Addr)
	o.Username, o.Password = cmp.Or(one.Username, o.Username), cmp.Or(one.Password, o.Password)
	o.DB, o.TLSConfig = cmp.Or(one.DB, o.DB), cmp.Or(one.TLSConfig, o.TLSConfig)
	return nil
}
