package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// checkClient refuses clients that a store cannot be kept with.
func checkClient(client goredis.UniversalClient) error {
	switch c := client.(type) {
	case *goredis.ClusterClient:
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return errors.New("tokenstore/redis: client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly); " +
				"a replica may not know of a finished operation yet")
		}
		return checkDeadlines(o.ContextTimeoutEnabled)
	case *goredis.Client:
		return checkDeadlines(c.Options().ContextTimeoutEnabled)
	case nil:
		return errors.New("tokenstore/redis: client is nil")
	}
	return fmt.Errorf("tokenstore/redis: client is a %T; want a Client or a ClusterClient", client)
}

func checkDeadlines(enabled bool) error {
	if enabled {
		return nil
	}
	return errors.New("tokenstore/redis: client ignores the deadlines of contexts; set ContextTimeoutEnabled, or use Connect")
}

// checkServers asks every primary whether it is fit to keep records. What a
// server does not tell is warned of.
func checkServers(ctx context.Context, client goredis.UniversalClient, log *slog.Logger) error {
	var mu sync.Mutex
	var errs []error
	err := eachPrimary(ctx, client, func(ctx context.Context, node *goredis.Client) error {
		if err := checkServer(ctx, node, log); err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return unavailable("ping", err)
	}
	return errors.Join(errs...)
}

// eachPrimary calls fn for every primary, side by side in a cluster.
func eachPrimary(ctx context.Context, client goredis.UniversalClient, fn func(ctx context.Context, node *goredis.Client) error) error {
	if cluster, ok := client.(*goredis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, fn)
	}
	return fn(ctx, client.(*goredis.Client))
}

func checkServer(ctx context.Context, node *goredis.Client, log *slog.Logger) error {
	if err := node.Ping(ctx).Err(); err != nil {
		return unavailable("ping", err)
	}
	addr := node.Options().Addr
	policy := policyOf(ctx, node)
	if err := checkEviction(node, policy); err != nil {
		return err
	}
	if policy == "" {
		log.WarnContext(ctx, "tokenstore/redis: the server does not tell its maxmemory-policy; it has to be noeviction", "addr", addr)
	}
	aof := setting(ctx, node, "persistence", "aof_enabled", "appendonly")
	if aof == "1" || aof == "yes" {
		return nil
	}
	log.WarnContext(ctx, "tokenstore/redis: no append-only file: a restart of the server loses its latest records, or all",
		"addr", addr, "snapshots", config1(ctx, node, "save"))
	return nil
}

// setting is what INFO says, or else CONFIG GET; "" where neither is allowed.
func setting(ctx context.Context, node *goredis.Client, section, field, name string) string {
	info, err := node.Info(ctx, section).Result()
	if err == nil {
		for line := range strings.Lines(info) {
			if k, v, _ := strings.Cut(strings.TrimSpace(line), ":"); k == field {
				return v
			}
		}
	}
	return config1(ctx, node, name)
}

func config1(ctx context.Context, node *goredis.Client, name string) string {
	values, err := node.ConfigGet(ctx, name).Result()
	if err != nil {
		return ""
	}
	return values[name]
}
