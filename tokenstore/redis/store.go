package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

var _ idem.Store = (*Store)(nil)

// inlineLimit is the longest packed response that is kept in the record itself,
// in bytes. A longer one has a key of its own, which goes when the result
// expires, so that only the small record remembers the key.
const inlineLimit = 1024

// Store is an [idem.Store] in Redis. It is safe for concurrent use. Make it
// with [New].
type Store struct {
	client  goredis.UniversalClient
	cluster bool
	keys    layout
	inc     *incarnations
	evicts  *eviction

	readOnly bool

	replicas *replication // nil: none is waited for
}

// New returns a store on client, which stays the caller's to close. It asks the
// server whether it is fit to keep records, and creates or compares the
// incarnations. On a Redis that lost its records it succeeds, and the store
// answers with idem.ErrStoreLost.
//
// It refuses a client that reads from replicas or ignores the deadlines of
// contexts, and a server that evicts keys; see [Connect] for a client that
// fits. A server that begins to evict later is noticed within seconds: Begin and
// Ping fail then, with idem.ErrUnavailable and the reason, until it no longer does. The error wraps idem.ErrUnavailable where the server or the witness
// cannot be reached.
func New(ctx context.Context, client goredis.UniversalClient, opts ...Option) (*Store, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if err := checkClient(client); err != nil {
		return nil, err
	}
	_, cluster := client.(*goredis.ClusterClient)
	s := &Store{client: client, cluster: cluster, keys: layout{prefix: cfg.prefix}, readOnly: cfg.readOnly}
	if s.replicas, err = newReplication(cfg, client); err != nil {
		return nil, err
	}
	if err := checkServers(ctx, client, cfg.log); err != nil {
		return nil, err
	}
	s.inc = newIncarnations(client, s.keys, cfg)
	s.evicts = newEviction(client, cfg)
	establish := s.inc.establish
	if s.readOnly {
		establish = s.inc.look
	}
	if err := establish(ctx); err != nil {
		return nil, err
	}
	if err := s.checkReplicas(ctx); err != nil {
		cfg.log.WarnContext(ctx, "tokenstore/redis: too few replicas to acknowledge new records",
			"error", err, "refused", cfg.shortfall == nil)
	}
	return s, nil
}

// Reach says that other processes see the records.
func (s *Store) Reach() idem.Reach { return idem.ReachShared }

// Ping returns nil when Redis answers, no server evicts keys, no shard is known to
// have lost its records, and no primary has fewer replicas than a Begin is refused
// with. The
// error wraps idem.ErrUnavailable or idem.ErrStoreLost.
func (s *Store) Ping(ctx context.Context) error {
	var lost int
	var err error
	for range tries {
		was := s.inc.want.Load()
		if lost, err = s.inc.lost(ctx); err != nil || lost == 0 {
			break
		}
		s.inc.refresh(ctx, 0, "")
		s.inc.acceptAlone(ctx, anyShard, was)
		if *s.inc.want.Load() == *was {
			break
		}
	}
	if err != nil {
		return unavailable("ping", err)
	}
	if lost > 0 {
		return fmt.Errorf("tokenstore/redis: ping: %d of %d shards: %w", lost, Shards, idem.ErrStoreLost)
	}
	if err := s.evicts.refuse(ctx, "ping"); err != nil {
		return err
	}
	if s.replicas != nil && s.replicas.shortfall == nil {
		return s.checkReplicas(ctx)
	}
	return nil
}

// AcceptLoss makes the store accept new keys again after it lost records, and
// returns how many shards had. Executions whose records were lost can then be
// repeated: it is an operator's decision. Processes that share the witness
// notice within seconds; without a witness each has to be told, or restarted.
// It is safe to repeat after an error. With a witness, shards that have an
// incarnation that it does not know get a new one: an operator who moves the
// witness to another server calls it there, and the one of before is refused.
func (s *Store) AcceptLoss(ctx context.Context) (int, error) {
	if err := s.mayWrite("accept"); err != nil {
		return 0, err
	}
	return s.inc.accept(ctx)
}

// Get returns the record of id, in one round trip. The error wraps
// idem.ErrNewerRecord, idem.ErrCorruptRecord, idem.ErrStoreLost or
// idem.ErrUnavailable.
func (s *Store) Get(ctx context.Context, id idem.KeyID) (idem.Record, error) {
	var rec idem.Record
	err := s.guarded(ctx, "get", id, func(expected string) (reply, error) {
		r, err := s.fetch(ctx, id)
		if err != nil {
			return r, err
		}
		if rec, err = r.decode("get"); err != nil {
			return r, err
		}
		// A store that only reads may expect nothing.
		if rec.State == idem.StateNone && r.extra != expected && expected != "" {
			r.verdict = "lost"
		}
		return r, nil
	})
	return rec, err
}

// fetch reads the record, its response, the incarnation and the server's time.
func (s *Store) fetch(ctx context.Context, id idem.KeyID) (reply, error) {
	keys := s.keys.keys(id)
	if s.cluster {
		return s.run(ctx, "get", getScript, keys)
	}
	pipe := s.client.Pipeline()
	values := pipe.MGet(ctx, keys[0], keys[3], keys[2])
	clock := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return reply{}, unavailable("get", err)
	}
	got := reply{verdict: "got", now: clock.Val()}
	for i, field := range []*string{&got.record, &got.body, &got.extra} {
		if v, ok := values.Val()[i].(string); ok {
			*field = v
			switch { // what is there and empty is not the lack of it
			case v != "":
			case i == 0:
				got.verdict = unreadable
			case i == 1:
				got.body = cutOff
			}
		}
	}
	return got, nil
}

// Issue makes a record in StateIssued. One that exists is returned as it is. The
// error wraps what that of [Store.Get] does.
func (s *Store) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (idem.Record, error) {
	if err := s.mayWrite("issue"); err != nil {
		return idem.Record{}, err
	}
	var rec idem.Record
	err := s.guarded(ctx, "issue", id, func(expected string) (reply, error) {
		r, err := s.run(ctx, "issue", issueScript, s.keys.keys(id), expected, millis(ttl))
		if err == nil {
			rec, err = r.decode("issue")
		}
		return r, err
	})
	return rec, err
}

// guarded makes a call that carries the expected incarnation. Where the answer
// is "lost" it looks whether somebody has accepted the loss, or accepts it where
// it is to do so, and calls again then. Records may be lost again meanwhile.
func (s *Store) guarded(ctx context.Context, method string, id idem.KeyID, call func(expected string) (reply, error)) error {
	shard := shardOf(id)
	for range tries {
		was := s.inc.want.Load()
		r, err := call(was[shard])
		if err != nil || r.verdict != "lost" {
			return err
		}
		s.inc.refresh(ctx, shard, r.extra)
		s.inc.acceptAlone(ctx, shard, was)
		if s.inc.expected(shard) == was[shard] {
			break
		}
	}
	return fmt.Errorf("tokenstore/redis: %s: shard %s: %w", method, shardName(shard), idem.ErrStoreLost)
}

// errTooLong says that a text does not fit into the record.
var errTooLong = errors.New("text is too long for a record")

func checkLength(method, what, text string, most int) error {
	if len(text) > most {
		return fmt.Errorf("tokenstore/redis: %s: %s of %d bytes, at most %d: %w", method, what, len(text), most, errTooLong)
	}
	return nil
}
