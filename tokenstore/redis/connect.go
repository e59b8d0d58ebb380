package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Time-outs of clients that [Connect] makes. A deadline of the context that is
// nearer wins. A host where nobody listens refuses at once; the time to dial is
// for one that does not answer, and has room for a lost SYN, which is sent again
// after a second.
const (
	dialTimeout = 1500 * time.Millisecond
	ioTimeout   = 2 * time.Second
)

// Connect returns a client that fits [New]: it honours the deadlines of
// contexts, sends a command again once, reads from primaries only, and fails
// fast where nobody listens. It connects at first use. Closing it is the
// caller's. The forms of addr:
//
//	redis://[USER:PASSWORD@]HOST:PORT[/DB]     one server; rediss:// with TLS
//	redis://HOST:PORT,redis://HOST:PORT        a cluster
//	redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/MASTER[/DB]
//
// Sending again is safe here, since every script may run twice.
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
		// Only Redis Enterprise has them; elsewhere every connection would be
		// made with a failing command.
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if rest, ok := strings.CutPrefix(addr, "redis+sentinel://"); ok {
		return o, parseSentinel(o, rest)
	}
	parts := strings.Split(addr, ",")
	scheme := ""
	for i, part := range parts {
		u, err := url.Parse(strings.TrimSpace(part))
		switch {
		case err != nil:
			return nil, errors.New("tokenstore/redis: address is not a URL")
		case u.Scheme != "redis" && u.Scheme != "rediss":
			return nil, fmt.Errorf("tokenstore/redis: address with scheme %q: want redis, rediss or redis+sentinel", u.Scheme)
		case u.Hostname() == "":
			return nil, errors.New("tokenstore/redis: address without a host")
		case i > 0 && u.Scheme != scheme:
			return nil, errors.New("tokenstore/redis: addresses of one cluster with and without TLS")
		case u.RawQuery != "" || u.Fragment != "":
			return nil, errors.New("tokenstore/redis: address with options; there are none")
		}
		scheme = u.Scheme
		port := u.Port()
		if port == "" {
			port = "6379"
		}
		o.Addrs = append(o.Addrs, net.JoinHostPort(u.Hostname(), port))
		if scheme == "rediss" {
			o.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12}
			if len(parts) == 1 {
				o.TLSConfig.ServerName = u.Hostname()
			}
		}
		if u.User != nil {
			o.Username = u.User.Username()
			o.Password, _ = u.User.Password()
		}
		if o.DB, err = parseDB(strings.Trim(u.Path, "/")); err != nil {
			return nil, err
		}
		if o.DB != 0 && len(parts) > 1 {
			return nil, errors.New("tokenstore/redis: a cluster has no database but 0")
		}
	}
	o.IsClusterMode = len(parts) > 1
	return o, nil
}

// parseSentinel reads what follows redis+sentinel://. User and password are
// those of the server; sentinels are asked without.
func parseSentinel(o *goredis.UniversalOptions, rest string) error {
	hosts, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(hosts, '@'); at >= 0 {
		u, err := url.Parse("redis://" + hosts[:at] + "@host")
		if err != nil {
			return errors.New("tokenstore/redis: address is not a URL")
		}
		o.Username = u.User.Username()
		o.Password, _ = u.User.Password()
		hosts = hosts[at+1:]
	}
	for h := range strings.SplitSeq(hosts, ",") {
		u, err := url.Parse("redis://" + strings.TrimSpace(h))
		if err != nil || u.Hostname() == "" {
			return errors.New("tokenstore/redis: sentinel address without a host")
		}
		port := u.Port()
		if port == "" {
			port = "26379"
		}
		o.Addrs = append(o.Addrs, net.JoinHostPort(u.Hostname(), port))
	}
	master, db, _ := strings.Cut(path, "/")
	if master == "" {
		return errors.New("tokenstore/redis: sentinel address without the master's name")
	}
	o.MasterName = master
	var err error
	o.DB, err = parseDB(db)
	return err
}

func parseDB(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	db, err := strconv.Atoi(s)
	if err != nil || db < 0 {
		return 0, fmt.Errorf("tokenstore/redis: database %q: want a number", s)
	}
	return db, nil
}
