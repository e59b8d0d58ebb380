package redisserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// EvictionEvery is how often servers in use are asked for their eviction policy.
const EvictionEvery = 5 * time.Second

// evictionTimeout bounds the question, because a request waits for it. It is shorter
// than EvictionEvery, so two questions never overlap.
const evictionTimeout = 500 * time.Millisecond

// EvictionError names a server that evicts keys.
type EvictionError struct{ Addr, Policy string }

func (e *EvictionError) Error() string {
	return fmt.Sprintf("%s has maxmemory-policy %s: without an evicted key an operation could run twice; set it to noeviction", e.Addr, e.Policy)
}

// WritableError names a server that would go on taking writes after a fail-over has made it a replica.
type WritableError struct{ Addr string }

func (e *WritableError) Error() string {
	return fmt.Sprintf("%s has replica-read-only no: after a fail-over it would take writes that nobody else sees, and an operation could run twice; set it to yes", e.Addr)
}

// Unfit reports whether an error names a server with a setting under which an operation could run twice.
func Unfit(err error) bool {
	_, evicts := errors.AsType[*EvictionError](err)
	_, writable := errors.AsType[*WritableError](err)
	return evicts || writable
}

// errPolicyUnknown says that a server allows neither INFO nor CONFIG GET.
var errPolicyUnknown = errors.New("a server does not tell its maxmemory-policy")

// CheckEviction returns an [EvictionError] if a server evicts keys. A server that
// does not tell its policy passes, and told is false.
func CheckEviction(ctx context.Context, node *goredis.Client) (told bool, err error) {
	policy := Setting(ctx, node, "memory", "maxmemory_policy", "maxmemory-policy")
	if policy == "" || policy == "noeviction" {
		return policy != "", nil
	}
	return true, &EvictionError{node.Options().Addr, policy}
}

// Eviction notices servers that begin to evict keys after the start: an operator
// changed maxmemory-policy, or a replica with another policy was promoted. It has no
// goroutine. One call of Refuse per interval asks all primaries, and the others use
// its answer.
type Eviction struct {
	client goredis.UniversalClient
	log    *slog.Logger
	due    *Interval

	mu    sync.Mutex
	found error // nil, or an EvictionError
}

// NewEviction returns an Eviction that asks every so often.
func NewEviction(client goredis.UniversalClient, log *slog.Logger, every time.Duration) *Eviction {
	return &Eviction{client: client, log: log, due: NewInterval(every, time.Now)}
}

// Refuse returns an [EvictionError] while a server evicts keys. A server that does
// not answer counts as unchanged.
func (e *Eviction) Refuse(ctx context.Context) error {
	if e.due.Due() {
		e.ask(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.found
}

func (e *Eviction) ask(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, evictionTimeout)
	defer cancel()
	err := EachPrimary(ctx, e.client, func(ctx context.Context, node *goredis.Client) error {
		told, err := CheckEviction(ctx, node)
		if err == nil && !told {
			err = errPolicyUnknown
		}
		return err
	})
	_, evicts := errors.AsType[*EvictionError](err)
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case evicts:
		if e.found == nil {
			e.log.ErrorContext(ctx, "a Redis server began to evict keys; new requests are refused until it stops", "err", err)
		}
		e.found = err
	case err == nil && e.found != nil:
		e.found = nil
		e.log.WarnContext(ctx, "no Redis server evicts keys any more; the keys that it evicted are gone")
	}
}
