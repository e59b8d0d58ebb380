package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
)

// Witness keeps one small document outside of this Redis, in a place that does
// not lose it: a znode, a row. It is safe for concurrent use.
type Witness interface {
	// Load returns the document and its version; nil and 0 where there is none.
	// It reads what the last acknowledged Save left.
	Load(ctx context.Context) (data []byte, version int64, err error)
	// Save replaces the document where it still has the version, and creates it
	// where the version is 0 and there is none. A conflict is an error.
	Save(ctx context.Context, data []byte, version int64) error
}

// set is one incarnation per shard; "" where a shard has none.
type set [Shards]string

// document is the form in which a set is kept by a witness.
type document struct {
	Version int               `json:"version"`
	Shards  map[string]string `json:"shards"`
}

const documentVersion = 1

func (s *set) marshal() ([]byte, error) {
	doc := document{Version: documentVersion, Shards: make(map[string]string, Shards)}
	for i, uuid := range s {
		doc.Shards[shardName(i)] = uuid
	}
	return json.Marshal(doc) // sorts the shards
}

func unmarshalSet(data []byte) (*set, error) {
	var doc document
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, fmt.Errorf("tokenstore/redis: witness: %w", err)
	}
	if doc.Version != documentVersion || len(doc.Shards) != Shards {
		return nil, errors.New("tokenstore/redis: witness: document is not the incarnations of this layout")
	}
	var s set
	for i := range s {
		if s[i] = doc.Shards[shardName(i)]; s[i] == "" {
			return nil, fmt.Errorf("tokenstore/redis: witness: no incarnation of shard %s", shardName(i))
		}
	}
	return &s, nil
}
