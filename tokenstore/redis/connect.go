package redisstore

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/idemkeeper/idemkeeper/internal/hostport"
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
//
// With rediss+sentinel:// the sentinels and the servers are reached over TLS. The certificate of
// each server has to be for the name or the address that the client dials.
func Connect(addr string, opts ...ConnectOption) (goredis.UniversalClient, error) {
	o, err := parseAddr(addr)
	if err != nil {
		return nil, err
	}
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
	}
	return goredis.NewUniversalClient(o), nil
}

// ConnectOption is an option of [Connect]. A nil option is ignored.
type ConnectOption func(*goredis.UniversalOptions)

// WithTLS sets the authorities and the client certificate for addresses that name TLS. The
// others stay without TLS. Connect copies the configuration, and checks the name of the server
// in the address if the configuration names none. Nil is the default, which trusts the
// authorities of the system.
func WithTLS(cfg *tls.Config) ConnectOption {
	return func(o *goredis.UniversalOptions) {
		if cfg == nil || o.TLSConfig == nil {
			return
		}
		name := cmp.Or(cfg.ServerName, o.TLSConfig.ServerName)
		o.TLSConfig = cfg.Clone()
		o.TLSConfig.ServerName = name
	}
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
	if scheme, rest, _ := strings.Cut(addr, "+sentinel://"); rest != "" {
		hosts, path, _ := strings.Cut(rest, "/")
		name, db, _ := strings.Cut(path, "/")
		if name == "" {
			return nil, errors.New("tokenstore/redis: sentinel address without the master's name")
		}
		if strings.ContainsAny(path, ",:@ ") { // the rest of a list that goes on after the name
			return nil, errors.New("tokenstore/redis: sentinel address: the name of the master comes once, after the last sentinel, as in redis+sentinel://HOST:PORT,HOST:PORT/MASTER")
		}
		at := strings.LastIndexByte(hosts, '@') + 1 // the server gets user and password, and the sentinels do not
		servers, port, o.MasterName = nil, "26379", name
		for host := range strings.SplitSeq(hosts[at:], ",") {
			servers = append(servers, scheme+"://"+hosts[:at]+strings.TrimSpace(host)+"/"+db)
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
	case o.IsClusterMode && o.TLSConfig != nil && strings.Count(addr, "rediss://") != len(servers):
		return nil, errors.New("tokenstore/redis: addresses of one cluster with and without TLS")
	case o.TLSConfig != nil && (o.IsClusterMode || o.MasterName != ""):
		o.TLSConfig.ServerName = "" // each connection checks the name that it dials
	}
	return o, nil
}

// addServer adds the server of a redis:// or rediss:// URL to the options.
func addServer(o *goredis.UniversalOptions, server, port string) error {
	u, err := url.Parse(server)
	if err != nil || u.Scheme != "redis" && u.Scheme != "rediss" || u.RawQuery != "" || u.Fragment != "" {
		// err would show the password
		return errors.New("tokenstore/redis: address: want redis://[USER:PASSWORD@]HOST[:PORT][/DB], rediss://, redis+sentinel:// or rediss+sentinel://, without options")
	}
	host, port, err := hostport.OfURL(u, port)
	if err != nil {
		return fmt.Errorf("tokenstore/redis: address: %w", err)
	}
	u.Host = net.JoinHostPort(host, port)
	one, err := goredis.ParseURL(u.String())
	if err != nil { // the database is no number
		return fmt.Errorf("tokenstore/redis: address: %w", err)
	}
	if o.Username != "" && one.Username != "" && o.Username != one.Username || o.Password != "" && one.Password != "" && o.Password != one.Password {
		return errors.New("tokenstore/redis: addresses of one cluster with different users or passwords")
	}
	o.Addrs = append(o.Addrs, one.Addr)
	o.Username, o.Password = cmp.Or(one.Username, o.Username), cmp.Or(one.Password, o.Password)
	o.DB, o.TLSConfig = cmp.Or(one.DB, o.DB), cmp.Or(one.TLSConfig, o.TLSConfig)
	return nil
}
