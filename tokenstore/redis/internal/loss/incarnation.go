package loss

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

// shards is the number of incarnations.
const shards = redisserver.Shards

// set is one incarnation per shard. A shard without one has "".
type set [shards]string

// lineage separates an incarnation from its predecessor.
const lineage = "/"

// successor returns a new incarnation after the loss of another one, which is "" for
// the very first.
func successor(of string) string {
	if of == "" {
		return uuid.New()
	}
	predecessor, _, _ := strings.Cut(of, lineage)
	return uuid.New() + lineage + predecessor
}

// follows reports whether an incarnation was made after the loss of another one.
func follows(incarnation, of string) bool {
	_, before, accepted := strings.Cut(incarnation, lineage)
	predecessor, _, _ := strings.Cut(of, lineage)
	return accepted && before == predecessor && !marked(incarnation)
}

// jumpMark stands in front of the incarnation of a shard whose clock jumped ahead.
const jumpMark = "jumped:"

func marked(incarnation string) bool { return strings.HasPrefix(incarnation, jumpMark) }

// unmarked is an incarnation without the mark of a jump.
func unmarked(incarnation string) string { return strings.TrimPrefix(incarnation, jumpMark) }

// unmark takes the marks away and counts them. A shard whose clock jumped before a process
// started is lost for that process too.
func (s *set) unmark() (n int) {
	for i := range s {
		if marked(s[i]) {
			n++
		}
		s[i] = unmarked(s[i])
	}
	return n
}

// overtaken reports whether an incarnation was made after the same loss as the expected
// one. Its process lost the race for the witness, so no record was written under it.
func overtaken(have, want string) bool {
	_, before, accepted := strings.Cut(have, lineage)
	_, predecessor, _ := strings.Cut(want, lineage)
	return accepted && have != want && before == predecessor
}

// foreign reports whether an incarnation was not made for this store.
func foreign(have, want string) bool {
	return have != "" && have != want && !follows(have, want)
}

// differing counts the shards without the expected incarnation. A read-only store may
// have no expectation.
func differing(have, want *set) int {
	lost := 0
	for i := range have {
		if want[i] != "" && have[i] != want[i] {
			lost++
		}
	}
	return lost
}

// incarnations reads and writes both sides: Redis has the actual incarnations, and the
// witness has the expected ones.
type incarnations struct {
	client goredis.UniversalClient
	Keys
	owner   Owner
	witness Witness // may be nil
}

// read returns the incarnations in Redis, in one round trip per server.
func (n *incarnations) read(ctx context.Context) (*set, error) {
	var have set
	cmds, err := n.client.Pipelined(ctx, func(pipe goredis.Pipeliner) error {
		for i := range shards {
			pipe.MGet(ctx, n.Incarnation(i)) // unlike GET it has no error for a missing key
		}
		return nil
	})
	if err != nil {
		return nil, n.redisFailed(ctx, err)
	}
	for i, cmd := range cmds {
		have[i], _ = cmd.(*goredis.SliceCmd).Val()[0].(string)
	}
	return &have, nil
}

func (n *incarnations) redisFailed(ctx context.Context, err error) error {
	redisserver.AskAnew(ctx, n.client)
	return fmt.Errorf("tokenstore/redis: incarnation: %w: %w", driver.ErrUnavailable, err)
}

// Witness keeps the expected incarnations outside of Redis.
type Witness interface {
	Load(ctx context.Context) (data []byte, version int64, err error)
	Save(ctx context.Context, data []byte, version int64) error
}

// Owner is the store that a document of the witness belongs to.
type Owner struct {
	Prefix string `json:"prefix,omitempty"` // of its keys
	Server string `json:"server,omitempty"` // the Redis that had the incarnations, as an operator knows it
}

// document is the form of a set in the witness. A document of an earlier build has no owner.
type document struct {
	Version int `json:"version"`
	Owner
	Shards map[string]string `json:"shards"`
}

const documentVersion = 1

func (s *set) marshal(of Owner) ([]byte, error) {
	doc := document{Version: documentVersion, Owner: of, Shards: make(map[string]string, shards)}
	for i, incarnation := range s {
		doc.Shards[redisserver.ShardName(i)] = incarnation
	}
	return json.Marshal(doc)
}

func unmarshalSet(data []byte) (*set, Owner, error) {
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, Owner{}, fmt.Errorf("tokenstore/redis: witness: %w", err)
	}
	if doc.Version != documentVersion || len(doc.Shards) != shards {
		return nil, Owner{}, errors.New("tokenstore/redis: witness: document does not hold the incarnations of this layout")
	}
	var s set
	for i := range s {
		if s[i] = doc.Shards[redisserver.ShardName(i)]; s[i] == "" {
			return nil, Owner{}, fmt.Errorf("tokenstore/redis: witness: no incarnation of shard %s", redisserver.ShardName(i))
		}
	}
	return &s, doc.Owner, nil
}

// testimony is what the witness says.
type testimony struct {
	want    *set // nil if there is no document, or no witness
	version int64
	owner   Owner
}

// load reads the witness. It fails if the document belongs to the store with another prefix.
func (n *incarnations) load(ctx context.Context) (t testimony, err error) {
	if n.witness == nil {
		return t, nil
	}
	data, version, err := n.witness.Load(ctx)
	if err != nil {
		return t, fmt.Errorf("tokenstore/redis: witness: %w: %w", driver.ErrUnavailable, err)
	}
	if t.version = version; data == nil {
		return t, nil
	}
	t.want, t.owner, err = unmarshalSet(data)
	if err == nil && t.owner.Prefix != "" && t.owner.Prefix != n.owner.Prefix {
		return testimony{}, fmt.Errorf("tokenstore/redis: the witness belongs to the store with the prefix %q, and this store has %q: give each store a witness of its own, see WithWitness",
			t.owner.Prefix, n.owner.Prefix)
	}
	return t, err
}

// save writes the witness. It returns false if another process has written it since
// version.
func (n *incarnations) save(ctx context.Context, want *set, version int64) (saved bool, err error) {
	if n.witness == nil {
		return true, nil // there is no other process to race with
	}
	data, err := want.marshal(n.owner)
	if err == nil {
		err = n.witness.Save(ctx, data, version)
	}
	if err == nil {
		return true, nil
	}
	if now, lerr := n.load(ctx); lerr == nil && now.version != version {
		return false, nil
	}
	return false, fmt.Errorf("tokenstore/redis: witness: %w: %w", driver.ErrUnavailable, err)
}
