package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// Option configures a [Store].
type Option func(*config)

type config struct {
	prefix  string
	witness Witness
	log     *slog.Logger
	recheck time.Duration // least pause between two looks at the witness because of a loss
	reread  time.Duration // between two looks at it without one

	evictionEvery time.Duration // between two looks at the servers' eviction policy

	readOnly bool

	accepted func(ctx context.Context, shards int) // not nil: accept losses unasked

	replicate      bool
	replicas       int
	replicaTimeout time.Duration
	shortfall      func(ctx context.Context, got, want int)
}

// WithPrefix sets what all keys start with; "idem" by default. Stores with
// different prefixes know nothing of each other.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithWitness keeps a copy of the incarnations in w, outside of this Redis, so
// that a loss is noticed by processes that start after it too. None by default.
func WithWitness(w Witness) Option { return func(c *config) { c.witness = w } }

// WithLogger sets where warnings go; [slog.Default] by default.
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

func newConfig(opts []Option) (config, error) {
	c := config{prefix: "idem", recheck: 250 * time.Millisecond, reread: rereadEvery, evictionEvery: evictionEvery}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.prefix == "" || strings.ContainsAny(c.prefix, "{}") {
		return c, fmt.Errorf("tokenstore/redis: prefix %q: want some text without braces", c.prefix)
	}
	if c.readOnly && c.accepted != nil {
		return c, errors.New("tokenstore/redis: WithReadOnly and WithLossAcceptance: a store that only reads cannot accept a loss")
	}
	return c, nil
}
