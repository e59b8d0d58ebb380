package redislock

import (
	"context"
	"errors"
	"fmt"
	"sync"

	goredis "github.com/redis/go-redis/v9"
)

// checkClient refuses clients that locks cannot be kept with.
func checkClient(client goredis.UniversalClient) error {
	switch c := client.(type) {
	case *goredis.ClusterClient:
		o := c.Options()
		if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
			return errors.New("lock/redis: client reads from replicas (ReadOnly, RouteByLatency or RouteRandomly); " +
				"a replica may not know of a lock yet")
		}
		return checkDeadlines(o.ContextTimeoutEnabled)
	case *goredis.Client:
		return checkDeadlines(c.Options().ContextTimeoutEnabled)
	case nil:
		return errors.New("lock/redis: client is nil")
	}
	return fmt.Errorf("lock/redis: client is a %T; want a Client or a ClusterClient", client)
}

func checkDeadlines(enabled bool) error {
	if enabled {
		return nil
	}
	return errors.New("lock/redis: client ignores the deadlines of contexts; set ContextTimeoutEnabled")
}

// checkServers asks every primary whether it is fit to keep locks.
func checkServers(ctx context.Context, client goredis.UniversalClient) error {
	var mu sync.Mutex
	var errs []error
	err := eachPrimary(ctx, client, func(ctx context.Context, node *goredis.Client) error {
		if err := checkServer(ctx, node); err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
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

// checkServer refuses a server that evicts: locks are what it would evict
// first, as keys with a time to live. One that does not tell is given the
// benefit of the doubt.
func checkServer(ctx context.Context, node *goredis.Client) error {
	if err := node.Ping(ctx).Err(); err != nil {
		return unavailable("ping", err)
	}
	if err := checkEviction(node, policyOf(ctx, node)); err != nil {
		return fmt.Errorf("lock/redis: %w", err)
	}
	return nil
}
