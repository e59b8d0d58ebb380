package redisstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
	"github.com/idemkeeper/idemkeeper/tokenstore/redis/internal/loss"
)

// ErrReadOnly says that a store made with [WithReadOnly] refused to write. It did nothing.
var ErrReadOnly = errors.New("tokenstore/redis: store is read-only")

// Witness keeps one small document safe outside of this Redis, such as in a znode or a
// row. It is safe for concurrent use.
type Witness interface {
	// Load returns the document of the last acknowledged Save and its version, or nil
	// and 0 without a document.
	Load(ctx context.Context) (data []byte, version int64, err error)
	// Save replaces the document if it still has the version. Version 0 creates it. A
	// conflict is an error.
	Save(ctx context.Context, data []byte, version int64) error
}

// Option configures a [Store]. A nil option is ignored.
type Option func(*config)

type config struct {
	prefix   string
	witness  func(path string) Witness // nil for none
	faulty   bool                      // there is a WithWitness(nil)
	log      *slog.Logger
	readOnly bool
	accepted func(ctx context.Context, shards int) // not nil: accept losses without an operator

	replicate      bool
	replicas       int
	replicaTimeout time.Duration

	// Tests shorten these.
	evictionEvery, witnessPause, witnessEvery time.Duration
	now, wall                                 func() time.Time
	lease                                     leaseclock.Source

	clockChanged func(context.Context, ClockChange)
}

// ConfiguresEngine makes it an [idem.SetupOption]. It does nothing.
func (Option) ConfiguresEngine() {}

// PrefixOf returns the prefix of a store with some options, for locks that have to be next to its records.
func PrefixOf(opts ...Option) string { return apply(opts).prefix }

// WithPrefix sets the prefix of all keys. "idem" by default. Stores with different
// prefixes do not see each other's records.
func WithPrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithWitness keeps a copy of the incarnations outside of this Redis, in the document that at
// returns for [WitnessPath] of the store's prefix. So stores with different prefixes have different
// documents. Processes started after a loss then notice it too. In ZooKeeper, recipes.Registers
// returns such a function. By default the store has no witness. [New] then warns of a Redis without
// records.
//
// Stores with the same prefix in different Redis servers need different chroots in ZooKeeper, or
// other documents. Otherwise each takes the server of the other for one that lost its records. [New]
// refuses the document of a store with another prefix. It refuses a nil function too, because the
// store would have no witness.
func WithWitness[W Witness](at func(path string) W) Option {
	return func(c *config) {
		c.faulty = at == nil
		c.witness = func(path string) Witness { return at(path) }
	}
}

// WitnessPath is the path of the witness of the store with a prefix. It is "/idem/redis" for the
// default prefix, and "/idem/redis/" and the prefix for another one, escaped as in a URL.
func WitnessPath(prefix string) string {
	const path = "/idem/redis"
	if prefix == defaultPrefix {
		return path
	}
	return path + "/" + url.PathEscape(prefix)
}

const defaultPrefix = "idem"

// WithLogger sets the logger for warnings. [slog.Default] by default.
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

// WithReadOnly makes a store without writes, for tools to inspect the records of
// services. [New] creates no incarnations. Issue, Begin, Settle, Abort, Retire,
// AcceptLoss and DeclareSealed fail with [ErrReadOnly]. All other methods work.
//
// If the witness knows the incarnations, a shard with another one or without one has
// lost its records, as for any store. Otherwise the store expects the incarnations that
// Redis has when the store is made. A shard without one then counts as unused, and a
// missing record in it is a record in driver.StateNone.
//
// New refuses it together with [WithLossAcceptance].
func WithReadOnly() Option { return func(c *config) { c.readOnly = true } }

// WithLossAcceptance makes the store accept a loss of its records by itself, as
// [Store.AcceptLoss] does. It then calls f with the number of lost shards. f may be nil.
// The call that noticed the loss goes on, and so do all others. [New] accepts a loss
// that it finds. By default an operator decides.
//
// Use it only if durable markers in ZooKeeper remember the executed keys, and if every
// instance has left markers for longer than clients repeat a request. Keys that were
// completed without a marker run again, without a question.
//
// A wrong address looks like a loss. The store accepts empty shards only. If any shard
// has another store's incarnation, calls fail with driver.ErrStoreLost until an operator
// has looked. An empty server at a wrong address cannot be told from a server after the
// loss of everything, so the store accepts it. With a
// witness the instances at the right server notice that within 2.5 s. They begin nothing
// until an operator has corrected the address and accepted the loss there. While the
// witness does not answer them they go on.
//
// Several processes may notice a loss at once. With a witness one of them accepts it and
// calls f. Without a witness each process accepts for itself, and a process that missed
// an earlier loss has to be restarted. A process that stops between the acceptance and
// the call of f does not call it, and another process completes the acceptance. If a
// loss cannot be accepted, calls fail with driver.ErrStoreLost, and the store tries again
// every quarter of a second.
func WithLossAcceptance(f func(ctx context.Context, shards int)) Option {
	return func(c *config) {
		if f == nil {
			f = func(context.Context, int) {}
		}
		c.accepted = f
	}
}

// WithReplicas makes Begin succeed only after at least n replicas of the record's
// primary have acknowledged the pending record (WAIT). Begin waits for them no longer
// than timeout. n is 1 or more, and timeout is at most half of the client's read
// time-out. By default Begin waits for no replica.
//
// If too few replicas acknowledge in time, Begin returns an error that wraps
// driver.ErrUnavailable. Ping returns one while too few replicas are connected. The wait adds no round trip from the client, but
// one from the primary to the replicas. Issue and Settle do not wait. If a fail-over
// loses their writes, the client asks or the engine saves again, or a pending record
// remains.
func WithReplicas(n int, timeout time.Duration) Option {
	return func(c *config) { c.replicas, c.replicaTimeout, c.replicate = n, timeout, true }
}

// WithClockChanges calls f when the clock of Redis, or one of the process, moved more than a
// minute unlike the others. The store logs each change too. f may be called concurrently, by
// the calls that notice a change, so it has to return at once.
func WithClockChanges(f func(context.Context, ClockChange)) Option {
	return func(c *config) { c.clockChanged = f }
}

func apply(opts []Option) config {
	c := config{
		prefix: defaultPrefix, evictionEvery: redisserver.EvictionEvery,
		witnessPause: loss.Pause, witnessEvery: loss.Every, now: time.Now, wall: time.Now, lease: leaseclock.Now,
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	return c
}

func newConfig(opts []Option) (config, error) {
	c := apply(opts)
	if err := redisserver.CheckPrefix(c.prefix); err != nil {
		return c, fmt.Errorf("tokenstore/redis: %w", err)
	}
	if c.faulty {
		return c, errors.New("tokenstore/redis: WithWitness has no function: the store would have no witness")
	}
	if c.readOnly && c.accepted != nil {
		return c, errors.New("tokenstore/redis: WithReadOnly excludes WithLossAcceptance: a read-only store cannot accept a loss")
	}
	return c, nil
}
