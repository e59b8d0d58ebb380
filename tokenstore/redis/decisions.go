package redisstore

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// keptDecisions is the number of decisions that a shard keeps for all of its keys.
const keptDecisions = 1000

// Decisions lists people's decisions about a key, newest first. They outlive the record
// and its next attempt, unlike the decision in the record. Decisions of resolver, engine,
// marker and sweeper are not kept. A shard keeps the newest 1,000 decisions about all of
// its keys. A Redis that loses its data loses them too. The error wraps
// driver.ErrUnavailable.
func (s *Store) Decisions(ctx context.Context, id driver.KeyID) ([]driver.Decided, error) {
	entries, err := s.client.LRange(ctx, s.keys.decisions(redisserver.ShardOf(id)), 0, -1).Result()
	if err != nil {
		return nil, s.failed(ctx, "decisions", err)
	}
	var list []driver.Decided
	for _, e := range entries {
		of, d, err := decodeDecided(e)
		if err != nil {
			return nil, err
		}
		if of == id {
			list = append(list, d)
		}
	}
	return list, nil
}

// A packed decision, as settle.lua writes it. Positions count from 0, and numbers are
// big-endian:
//
//	0    version        8-11   attempt number   28-91 key ID, in hex
//	1    state          12-27  settlement ID    92    length of author
//	2-7  time, ms                               93-   author, reason
const (
	decidedVersion = 1
	decidedHeader  = 93
)

func decodeDecided(e string) (id driver.KeyID, d driver.Decided, err error) {
	f := fields(e)
	version := f.number(1)
	d.State, d.At, d.Attempt = driver.State(f.number(1)), f.time(), uint32(f.number(4))
	copy(d.ID[:], f.text(len(d.ID)))
	id, ok := parseID(f.text(64))
	by := int(f.number(1))
	switch {
	case e != "" && version != decidedVersion:
		return id, d, fmt.Errorf("tokenstore/redis: decision of version %d: a newer build wrote it", version)
	case !ok || len(e) < decidedHeader || by > len(f):
		return id, d, fmt.Errorf("tokenstore/redis: malformed decision of %d bytes", len(e)) // without its content
	}
	d.By, d.Reason = f.text(by), string(f)
	return id, d, nil
}
