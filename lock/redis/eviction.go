package redislock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// evictionEvery is how often the primaries are asked whether they evict keys, and
// evictionTimeout bounds the question.
const (
	evictionEvery   = 5 * time.Second
	evictionTimeout = time.Second
)

var errNotTold = errors.New("a server does not tell its maxmemory-policy")

// watchEviction notices servers that begin to evict keys while the locker is in
// use. Until they no longer do, no lock is taken; those that are held are renewed,
// and are lost where they are evicted.
func (l *Locker) watchEviction(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-l.ctx.Done():
			return
		}
		l.lookForEviction()
	}
}

// lookForEviction asks once. Where a server does not tell, it counts as what it
// was.
func (l *Locker) lookForEviction() {
	ctx, cancel := context.WithTimeout(l.ctx, evictionTimeout)
	defer cancel()
	err := eachPrimary(ctx, l.client, func(ctx context.Context, node *goredis.Client) error {
		policy := policyOf(ctx, node)
		if policy == "" {
			return errNotTold
		}
		return checkEviction(node, policy)
	})
	was := l.evicts.Load()
	_, evicts := errors.AsType[*evictionError](err)
	switch {
	case evicts:
		l.evicts.Store(&err)
		if was == nil {
			l.log.Error("lock/redis: a server began to evict keys; no lock is taken until it no longer does", "err", err)
		}
	case err == nil && was != nil:
		l.evicts.Store(nil)
		l.log.Warn("lock/redis: no server evicts keys any more")
	}
}

// evictionError names a server that evicts.
type evictionError struct{ addr, policy string }

func (e *evictionError) Error() string {
	return fmt.Sprintf("%s has maxmemory-policy %s: an evicted lock would be given to a second owner; set it to noeviction", e.addr, e.policy)
}

// policyOf is the server's maxmemory-policy; "" where it does not tell.
func policyOf(ctx context.Context, node *goredis.Client) string {
	info, err := node.Info(ctx, "memory").Result()
	if err != nil {
		return ""
	}
	for line := range strings.Lines(info) {
		if policy, ok := strings.CutPrefix(strings.TrimSpace(line), "maxmemory_policy:"); ok {
			return policy
		}
	}
	return ""
}

// checkEviction returns an error for a policy that evicts. A server that does not
// tell is given the benefit of the doubt.
func checkEviction(node *goredis.Client, policy string) error {
	if policy == "" || policy == "noeviction" {
		return nil
	}
	return &evictionError{node.Options().Addr, policy}
}
