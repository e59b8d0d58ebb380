package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	cluster, ok := client.(*goredis.ClusterClient)
	if !ok {
		return checkServer(ctx, client.(*goredis.Client))
	}
	var mu sync.Mutex
	var errs []error
	err := cluster.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
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

// checkServer refuses a server that evicts: locks are what it would evict
// first, as keys with a time to live. One that does not tell is given the
// benefit of the doubt.
func checkServer(ctx context.Context, node *goredis.Client) error {
	if err := node.Ping(ctx).Err(); err != nil {
		return unavailable("ping", err)
	}
	info, err := node.Info(ctx, "memory").Result()
	if err != nil {
		return nil // not everybody may ask
	}
	for line := range strings.Lines(info) {
		if policy, ok := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:"); ok && policy != "noeviction" {
			return fmt.Errorf("lock/redis: %s has maxmemory-policy %s: an evicted lock would be given to a second owner; set it to noeviction",
				node.Options().Addr, policy)
		}
	}
	return nil
}
