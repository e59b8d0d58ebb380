package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

// evictionEvery is how often a store in use asks its servers whether they evict,
// and evictionTimeout bounds the question, which a Begin waits for.
const (
	evictionEvery   = 5 * time.Second
	evictionTimeout = 500 * time.Millisecond
)

// eviction notices servers that begin to evict keys while the store is in use:
// somebody has changed maxmemory-policy, or a replica with another one was
// promoted. It has no goroutine. One Begin per interval asks, and the others go on
// with what is known, at the cost of one atomic read.
type eviction struct {
	client goredis.UniversalClient
	log    *slog.Logger
	start  time.Time
	every  time.Duration
	due    atomic.Int64 // when to ask next, in ns since start

	turn  sync.Mutex            // of those who ask
	found atomic.Pointer[error] // what is wrong; nil: nothing
}

func newEviction(client goredis.UniversalClient, cfg config) *eviction {
	e := &eviction{client: client, log: cfg.log, start: time.Now(), every: cfg.evictionEvery}
	e.due.Store(int64(e.every))
	return e
}

// refuse returns an error that wraps idem.ErrUnavailable where a server evicts: no
// new attempt begins there, because its record could be evicted, and the operation
// run again.
func (e *eviction) refuse(ctx context.Context, method string) error {
	due, now := e.due.Load(), int64(time.Since(e.start))
	if now >= due && e.due.CompareAndSwap(due, now+int64(e.every)) {
		e.ask(ctx)
	}
	if err := e.found.Load(); err != nil {
		return fmt.Errorf("tokenstore/redis: %s: %w: %w", method, idem.ErrUnavailable, *err)
	}
	return nil
}

var errNotTold = errors.New("tokenstore/redis: a server does not tell its maxmemory-policy")

// ask asks the servers. Where one does not tell, it counts as what it was.
func (e *eviction) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	e.turn.Lock()
	defer e.turn.Unlock()
	was := e.found.Load()
	var mu sync.Mutex
	var found error
	err := eachPrimary(ctx, e.client, func(ctx context.Context, node *goredis.Client) error {
		policy := policyOf(ctx, node)
		if policy == "" {
			return errNotTold
		}
		mu.Lock()
		defer mu.Unlock()
		found = cmp.Or(found, checkEviction(node, policy))
		return nil
	})
	switch {
	case found != nil:
		e.found.Store(&found)
		if was == nil {
			e.log.ErrorContext(ctx, "tokenstore/redis: a server began to evict keys; new keys are refused until it no longer does", "error", found)
		}
	case err == nil && was != nil:
		e.found.Store(nil)
		e.log.WarnContext(ctx, "tokenstore/redis: no server evicts keys any more; records that were evicted meanwhile are gone")
	}
}

// policyOf is the server's maxmemory-policy; "" where it does not tell.
func policyOf(ctx context.Context, node *goredis.Client) string {
	return setting(ctx, node, "memory", "maxmemory_policy", "maxmemory-policy")
}

// checkEviction returns an error for a policy that evicts.
func checkEviction(node *goredis.Client, policy string) error {
	if policy == "" || policy == "noeviction" {
		return nil
	}
	return fmt.Errorf("tokenstore/redis: %s has maxmemory-policy %s: evicted records would let operations run twice; set it to noeviction",
		node.Options().Addr, policy)
}
