package redisstore

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redislocks"
	"github.com/idemkeeper/idemkeeper/internal/redispipe"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
	"github.com/idemkeeper/idemkeeper/tokenstore/redis/internal/loss"
)

var (
	_ driver.Store         = (*Store)(nil)
	_ driver.ReadOnlyStore = (*Store)(nil)
)

// Store is an [driver.Store] in Redis. It is safe for concurrent use. Make it with [New].
type Store struct {
	client   goredis.UniversalClient
	lanes    [Shards]*redispipe.Lane // the same one for all shards of a single server
	bulk     *redispipe.Bulk         // for calls with large responses
	keys     *layout
	locks    *redislocks.Keys
	loss     *loss.Guard
	evicts   *redisserver.Eviction
	replicas *replication // nil if Begin waits for no replica
	clocks   *clocks
	readOnly bool
	// confirmsRole: a read proves that its server is a primary. In a cluster a replica sends reads away.
	confirmsRole bool
}

// New returns a store on client. The caller closes the client. New asks the servers
// whether they are fit to keep records, and creates or compares the incarnations. If the
// Redis lost its records, New succeeds and the store answers with driver.ErrStoreLost.
//
// New refuses clients with reads from replicas or without the deadlines of contexts, and
// servers with an eviction policy, or with replica-read-only off, which would go on taking writes
// after a fail-over. [Connect] makes a suitable client. If a server begins
// to evict keys later, Begin and Ping notice it within seconds. They fail with
// driver.ErrUnavailable until the server stops. The error of New wraps
// driver.ErrUnavailable if a server or the witness cannot be reached.
func New(ctx context.Context, client goredis.UniversalClient, opts ...Option) (*Store, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if err := redisserver.CheckClient(client); err != nil {
		return nil, fmt.Errorf("tokenstore/redis: %w", err)
	}
	s := &Store{client: client, lanes: newLanes(client), bulk: redispipe.NewBulk(client), keys: newLayout(cfg.prefix), locks: redislocks.NewKeys(cfg.prefix), readOnly: cfg.readOnly, clocks: newClocks(cfg, client)}
	s.confirmsRole = s.clocks.single && !cfg.readOnly
	if s.replicas, err = newReplication(cfg, client); err != nil {
		return nil, err
	}
	if err := checkServers(ctx, client, cfg.log); err != nil {
		return nil, err
	}
	s.evicts = redisserver.NewEviction(client, cfg.log, cfg.evictionEvery)
	var witness Witness
	if cfg.witness != nil {
		witness = cfg.witness(WitnessPath(cfg.prefix))
	}
	s.loss = loss.New(loss.Config{
		Client: client, Owner: loss.Owner{Prefix: cfg.prefix, Server: redisserver.Name(client)}, Keys: loss.Keys{Incarnation: s.keys.incarnation, Clock: s.keys.clock, Canary: s.keys.canary}, Witness: witness, Log: cfg.log,
		ReadOnly: cfg.readOnly, Accepted: cfg.accepted,
		Pause: cfg.witnessPause, Every: cfg.witnessEvery, Now: cfg.now,
	})
	if err := s.loss.Start(ctx); err != nil {
		return nil, err
	}
	if err := s.checkPermissions(ctx); err != nil {
		return nil, err
	}
	if err := s.replicas.check(ctx); redisserver.Answered(err) {
		return nil, err
	} else if err != nil {
		cfg.log.WarnContext(ctx, "tokenstore/redis: too few replicas to acknowledge new records",
			"err", err)
	}
	return s, nil
}

// newLanes returns the lane of each shard. In a cluster the shards have lanes of their
// own, so no shard waits for another one's server.
func newLanes(client goredis.UniversalClient) (lanes [Shards]*redispipe.Lane) {
	_, cluster := client.(*goredis.ClusterClient)
	for shard := range lanes {
		if shard > 0 && !cluster {
			lanes[shard] = lanes[0]
			continue
		}
		lanes[shard] = redispipe.New(client)
	}
	return lanes
}

// server names the server of a key. The client knows it without a round trip.
func (s *Store) server(ctx context.Context, key string) string {
	if cluster, ok := s.client.(*goredis.ClusterClient); ok {
		if node, err := cluster.MasterForKey(ctx, key); err == nil {
			return node.Options().Addr
		}
	}
	return ""
}

// checkServers refuses a server with an eviction policy or with writable replicas. It warns if the server hides its
// policy or has no append-only file.
func checkServers(ctx context.Context, client goredis.UniversalClient, log *slog.Logger) error {
	err := redisserver.Greet(ctx, client, func(ctx context.Context, node *goredis.Client) error {
		addr := node.Options().Addr
		told, err := redisserver.CheckEviction(ctx, node)
		if err != nil {
			return err
		}
		if !told {
			log.WarnContext(ctx, "tokenstore/redis: the server does not tell its maxmemory-policy; it must be noeviction", "addr", addr)
		}
		if aof := redisserver.Setting(ctx, node, "persistence", "aof_enabled", "appendonly"); aof != "1" && aof != "yes" {
			log.WarnContext(ctx, "tokenstore/redis: no append-only file: a restart of the server loses its latest records, or all: set appendonly yes, and appendfsync always",
				"addr", addr, "snapshots", redisserver.Setting(ctx, node, "", "", "save"))
		}
		return nil
	})
	if redisserver.Unfit(err) {
		return fmt.Errorf("tokenstore/redis: %w", err)
	}
	if err != nil {
		return unavailable("ping", err)
	}
	return nil
}

// ReadOnly implements [driver.ReadOnlyStore].
func (s *Store) ReadOnly() bool { return s.readOnly }

// Visibility returns [driver.VisibilityShared], because other processes see the records.
func (s *Store) Visibility() driver.Visibility { return driver.VisibilityShared }

// AcceptLoss makes the store accept new keys again after it lost records. It returns the
// number of lost shards. Executions whose records were lost can then be repeated, so an
// operator decides. AcceptLoss is safe to repeat after an error.
//
// Other processes with the same witness notice within seconds. Without a witness the
// operator repeats the call in each process, or restarts it. With a witness every shard
// with an unknown incarnation gets a new one. To move the service to another server, the
// operator calls AcceptLoss there. The processes then refuse the former server.
func (s *Store) AcceptLoss(ctx context.Context) (int, error) {
	if err := s.mayWrite("accept"); err != nil {
		return 0, err
	}
	return s.loss.Accept(ctx)
}

// mayWrite refuses every call of a read-only store, and texts that a record cannot hold.
func (s *Store) mayWrite(method string, texts ...string) error {
	if s.readOnly {
		return fmt.Errorf("tokenstore/redis: %s: %w", method, ErrReadOnly)
	}
	for _, text := range texts {
		if len(text) > maxText {
			return fmt.Errorf("tokenstore/redis: %s: %.20q... has %d bytes, want at most %d", method, text, len(text), maxText)
		}
		if strings.HasPrefix(text, packedUUID) {
			return fmt.Errorf("tokenstore/redis: %s: %q begins with a zero byte", method, text)
		}
	}
	return nil
}
