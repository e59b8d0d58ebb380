package redislock

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redislocks"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var (
	_ driver.LockInspector = (*Locker)(nil)
	_ driver.LockInspector = (*Inspector)(nil)
)

// Inspector tells operators about locks, and takes none. It writes nothing and has no
// goroutine. It is safe for concurrent use. Make it with [NewInspector].
type Inspector struct {
	client goredis.UniversalClient
	keys   *redislocks.Keys
}

// NewInspector returns an inspector of the locks in a Redis. The only option with an effect is
// [WithPrefix].
func NewInspector(client goredis.UniversalClient, opts ...Option) (*Inspector, error) {
	cfg, err := newConfig(opts)
	switch {
	case err != nil:
		return nil, err
	case client == nil:
		return nil, errors.New("lock/redis: NewInspector needs a client")
	}
	return &Inspector{client, redislocks.NewKeys(cfg.prefix)}, nil
}

// MustNewInspector is [NewInspector] for known-good wiring. Like [regexp.MustCompile] it panics where
// NewInspector returns an error.
func MustNewInspector(client goredis.UniversalClient, opts ...Option) *Inspector {
	i, err := NewInspector(client, opts...)
	if err != nil {
		panic(err)
	}
	return i
}

// HeldBy implements [driver.LockInspector]. The lock of a dead process counts as held until its
// time to live is over.
func (i *Inspector) HeldBy(ctx context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	value, err := i.client.Get(ctx, i.keys.Lock(id)).Result()
	switch {
	case errors.Is(err, goredis.Nil):
		return driver.Holder{}, false, nil
	case err != nil:
		return driver.Holder{}, false, unavailable("held by", err)
	}
	return parseHolder(value), true, nil
}

// DomainOf implements [driver.LockInspector]. Each shard has a domain.
func (i *Inspector) DomainOf(ctx context.Context, id driver.KeyID) (string, error) {
	domain, err := i.client.HGet(ctx, i.keys.Fences(redisserver.ShardOf(id)), "domain").Result()
	switch {
	case errors.Is(err, goredis.Nil):
		return "", nil
	case err != nil:
		return "", unavailable("domain", err)
	}
	return domain, nil
}

// HeldBy implements [driver.LockInspector], as [Inspector.HeldBy] does.
func (l *Locker) HeldBy(ctx context.Context, id driver.KeyID) (driver.Holder, bool, error) {
	return l.inspector().HeldBy(ctx, id)
}

// DomainOf implements [driver.LockInspector], as [Inspector.DomainOf] does.
func (l *Locker) DomainOf(ctx context.Context, id driver.KeyID) (string, error) {
	return l.inspector().DomainOf(ctx, id)
}

func (l *Locker) inspector() *Inspector { return &Inspector{l.keeper.client, l.keeper.keys} }

// thisProcess names this process in the value of a lock. The name has no space.
var thisProcess = func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return fmt.Sprintf("%d@%s", os.Getpid(), url.PathEscape(host))
}()

// parseHolder reads the value of a lock. Locks of earlier builds do not name the process.
func parseHolder(value string) (h driver.Holder) {
	words := strings.Fields(value)
	if len(words) > 3 {
		h.Nonce, _ = driver.ParseNonce(words[3]) // the zero nonce is an unknown one
	}
	if len(words) > 4 {
		pid, host, _ := strings.Cut(words[4], "@")
		h.PID, _ = strconv.Atoi(pid) // 0 is an unknown one
		h.Host, _ = url.PathUnescape(host)
	}
	return h
}
