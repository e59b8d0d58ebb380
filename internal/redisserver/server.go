package redisserver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/tlshint"
)

// CheckClient refuses a client that reads from replicas, which may lack the latest
// records and locks, and a client that ignores the deadlines of contexts.
func CheckClient(client goredis.UniversalClient) error {
	var deadlines bool
	if client == goredis.UniversalClient((*goredis.Client)(nil)) || client == goredis.UniversalClient((*goredis.ClusterClient)(nil)) {
		client = nil
	}
	switch c := client.(type) {
	case *goredis.ClusterClient:
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return errors.New("client reads from replicas, which may be stale; unset ReadOnly, RouteByLatency and RouteRandomly")
		}
		deadlines = o.ContextTimeoutEnabled
	case *goredis.Client:
		deadlines = c.Options().ContextTimeoutEnabled
	case nil:
		return errors.New("client is nil")
	default:
		return fmt.Errorf("client is a %T, want a Client or a ClusterClient", client)
	}
	if !deadlines {
		return errors.New("client ignores the deadlines of contexts: set ContextTimeoutEnabled in its options, or open it with redisstore.Connect")
	}
	return nil
}

// Name is how an operator knows the server or the cluster of a client, without its password. It is
// "" for Sentinel, whose primary has no name of its own.
func Name(client goredis.UniversalClient) string {
	switch c := client.(type) {
	case *goredis.ClusterClient:
		return strings.Join(slices.Sorted(slices.Values(c.Options().Addrs)), ",")
	case *goredis.Client:
		if o := c.Options(); o.Addr != sentinelAddr {
			return fmt.Sprintf("%s/%d", o.Addr, o.DB)
		}
	}
	return ""
}

// sentinelAddr is what the client library has in place of an address under Sentinel.
const sentinelAddr = "FailoverClient"

// EachPrimary calls fn for every primary, concurrently in a cluster. It returns all
// errors. In a cluster a panic of fn is an error, because the client calls fn on goroutines of its own.
func EachPrimary(ctx context.Context, client goredis.UniversalClient, fn func(ctx context.Context, node *goredis.Client) error) error {
	cluster, ok := client.(*goredis.ClusterClient)
	if !ok {
		return fn(ctx, client.(*goredis.Client))
	}
	var mu sync.Mutex
	var errs []error
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
		if err := guarded(func() error { return fn(ctx, node) }); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// Greet calls fn for every primary that answers a first PING and may be sent a script with its
// text, which is rarely needed later. A server that would be a writable replica gets a [WritableError],
// unless it does not tell. If a server refuses the client over TLS, the error says the likely reason.
func Greet(ctx context.Context, client goredis.UniversalClient, fn func(ctx context.Context, node *goredis.Client) error) error {
	err := EachPrimary(ctx, client, func(ctx context.Context, node *goredis.Client) error {
		if err := node.Ping(ctx).Err(); err != nil {
			return noRedis(node.Options().Addr, err)
		}
		if err := node.Eval(ctx, "return 1", nil).Err(); Answered(err) {
			return fmt.Errorf("eval: %w", err)
		}
		if Setting(ctx, node, "", "", "replica-read-only") == "no" {
			return &WritableError{node.Options().Addr}
		}
		return fn(ctx, node)
	})
	if cfg := tlsOf(client); err != nil && cfg != nil {
		return tlshint.Explain(err, tlshint.Certified(cfg))
	}
	return err
}

// noRedis explains a connection that ended without an answer in the protocol of Redis.
func noRedis(addr string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || strings.HasPrefix(err.Error(), "redis: can't parse") {
		return fmt.Errorf("%s does not answer as Redis does: look at the address and its port, and whether the server wants TLS (rediss://): %w", addr, err)
	}
	return err
}

func tlsOf(client goredis.UniversalClient) *tls.Config {
	switch c := client.(type) {
	case *goredis.ClusterClient:
		return c.Options().TLSConfig
	case *goredis.Client:
		return c.Options().TLSConfig
	}
	return nil
}

// AskAnew makes the client of a cluster ask again, in the background, where the
// slots are. The client itself asks once a minute, which is late after a fail-over:
// the primary it asked last may be dead, and only a live one redirects.
func AskAnew(ctx context.Context, client goredis.UniversalClient) {
	if c, ok := client.(*goredis.ClusterClient); ok {
		c.ReloadState(ctx)
	}
}

// Setting returns a value of INFO, or else of CONFIG GET. It returns "" if the
// server allows neither. An empty field asks CONFIG GET alone.
func Setting(ctx context.Context, node *goredis.Client, section, field, name string) string {
	if field != "" {
		info, _ := node.Info(ctx, section).Result() // an error leaves it empty
		for line := range strings.Lines(info) {
			if k, v, _ := strings.Cut(strings.TrimSpace(line), ":"); k == field {
				return v
			}
		}
	}
	values, _ := node.ConfigGet(ctx, name).Result() // an error leaves it nil
	return values[name]
}
