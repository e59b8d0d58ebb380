package idemzk

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/engine/internal/parts"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// Option configures [New]. Every [idem.Option] and [redisstore.Option] is one, and so are the options of this package and
// sealed.Responses.
type Option = idem.SetupOption

type option func(*config)

func (option) ConfiguresEngine() {}

type config struct {
	chosen    int // how often durable markers were turned on or off
	marking   bool
	retention time.Duration // of durable markers, also of those that are left from other instances
	witness   string        // "" for the path that follows the prefix
}

// leftFor is how long an instance without durable markers keeps those of others.
const leftFor = 24 * time.Hour

// WithDurableMarkers marks each key in ZooKeeper before its handler runs. So a key does not run again, even if Redis loses its record in a
// fail-over or loses all of them. A marker stays for retention, which has to be longer than clients repeat a request. The engine removes older ones in the
// background, in one instance at a time. Marking takes one more write of ZooKeeper before the handler, and each marker takes 600 bytes of
// memory in every server of the ensemble.
func WithDurableMarkers(retention time.Duration) Option {
	return option(func(c *config) { c.chosen, c.marking, c.retention = c.chosen+1, true, retention })
}

// WithoutDurableMarkers leaves no markers. If a fail-over of Redis loses the record of a key, the key may run again. Markers from before still
// count, and the engine removes them after a day.
func WithoutDurableMarkers() Option {
	return option(func(c *config) { c.chosen, c.retention = c.chosen+1, leftFor })
}

// WithWitnessPath sets the znode that remembers which Redis has the records. By default it is [redisstore.WitnessPath] of the store's
// prefix. A service that had its witness somewhere else names that path. Otherwise it begins with a new witness, and does not
// notice if records were lost in the meantime.
func WithWitnessPath(path string) Option { return option(func(c *config) { c.witness = path }) }

// LockRoot is the parent of the locks of a store with a prefix, if zookeeper.Config.Root does not say another. It is "/lock" for the default
// prefix, and "/idem/lock/" and the prefix for another one, escaped as in a URL.
func LockRoot(prefix string) string {
	if prefix == redisstore.PrefixOf() {
		return "/lock"
	}
	return "/idem/lock/" + url.PathEscape(prefix)
}

// errMarkers asks for the choice that nobody else can make.
var errMarkers = errors.New("idemzk: say WithDurableMarkers(retention), and a key does not run again although Redis has lost its record, " +
	"or WithoutDurableMarkers(), and it may")

// New returns an engine with locks in ZooKeeper and records in the Redis of client. It opens a session with the ensemble. It is
// [zookeeper.Open], [redisstore.New] and [idem.New], and its error is that of those. The store has a witness in ZooKeeper. One of
// [WithDurableMarkers] and [WithoutDurableMarkers] is required.
//
// Root of the Config, if empty, is [LockRoot] of the store's prefix. Its Logger is that of locks, records and engine. Closing the engine ends
// the session. The client of Redis stays open.
func New(ctx context.Context, ensemble zookeeper.Config, client goredis.UniversalClient, opts ...Option) (*idem.Engine, error) {
	var c config
	common := parts.Options{Log: ensemble.Logger}
	ofStore := []redisstore.Option{redisstore.WithLogger(ensemble.Logger)}
	for _, opt := range opts {
		switch opt := opt.(type) {
		case redisstore.Option:
			ofStore = append(ofStore, opt)
		case option:
			opt(&c)
		default:
			if err := common.Take(opt); err != nil {
				return nil, fmt.Errorf("idemzk: %w", err)
			}
		}
	}
	switch {
	case c.chosen == 0:
		return nil, errMarkers
	case c.chosen > 1:
		return nil, errors.New("idemzk: durable markers are turned on or off more than once")
	case c.retention <= 0:
		return nil, errors.New("idemzk: WithDurableMarkers needs a retention of more than 0")
	case client == nil:
		return nil, errors.New("idemzk: no client of Redis")
	}
	prefix := redisstore.PrefixOf(ofStore...)
	if prefix == "" {
		return nil, errors.New("idemzk: the prefix is empty")
	}
	if ensemble.Root == "" {
		ensemble.Root = LockRoot(prefix)
	}
	zk, err := zookeeper.Open(ctx, ensemble)
	if err != nil {
		return nil, err
	}
	witness := redisstore.WithWitness(func(path string) *recipes.Register {
		if c.witness != "" {
			path = c.witness
		}
		return recipes.Registers(zk)(path)
	})
	store, err := redisstore.New(ctx, client, append([]redisstore.Option{witness}, ofStore...)...)
	if err != nil {
		parts.End(ctx, zk)
		return nil, err
	}
	var markers zookeeper.LockerOption
	if c.marking {
		markers = zookeeper.WithDurableMarkers()
	}
	r, err := newRemover(zk.Locker(markers), ensemble.Root, c.retention, ensemble.Logger)
	if err != nil {
		parts.End(ctx, zk)
		return nil, err
	}
	engine, err := common.Engine(ctx, zk, r.locker, store, idem.WithCloser(r))
	if err == nil {
		r.start(ctx, engine)
	}
	return engine, err
}
