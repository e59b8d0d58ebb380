package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Decided is what somebody decided about an attempt, and when, by the server's
// clock.
type Decided struct {
	At      time.Time
	Attempt uint32
	State   idem.State // that the attempt was settled to
	idem.Decision
}

// keptDecisions is how many decisions a shard keeps, which are those about all
// of its keys.
const keptDecisions = 1000

// machines are authors whose decisions are not kept: they follow from the route's
// policy, and there may be many.
var machines = []string{"resolver", "engine", "marker", "sweeper"}

// audited reports whether decisions of an author are kept.
func audited(by string) bool { return by != "" && !slices.Contains(machines, by) }

// Decisions lists what people decided about a key, newest first. Unlike the
// decision in the record they outlive the next attempt, and the record. Those of
// resolver, engine, marker and sweeper are not kept. Of all keys of a shard the
// newest 1,000 are there; a Redis that loses its data loses them too. The error
// wraps idem.ErrUnavailable.
func (s *Store) Decisions(ctx context.Context, id idem.KeyID) ([]Decided, error) {
	entries, err := s.client.LRange(ctx, s.keys.decisions(shardOf(id)), 0, -1).Result()
	if err != nil {
		return nil, s.failed(ctx, "decisions", err)
	}
	var list []Decided
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

// A packed decision, as settle.lua writes it; positions count from 0, numbers
// are big-endian:
//
//	0    version        8-11   attempt number   28-91 key ID, in hex
//	1    state          12-27  settlement ID    92    length of author
//	2-7  time, ms                               93-   author, reason
const (
	decidedVersion = 1
	decidedHeader  = 93
)

func decodeDecided(e string) (id idem.KeyID, d Decided, err error) {
	if e != "" && e[0] != decidedVersion {
		return id, d, fmt.Errorf("tokenstore/redis: decision of version %d: a newer build wrote it", e[0])
	}
	malformed := fmt.Errorf("tokenstore/redis: malformed decision of %d bytes", len(e)) // not what it holds
	if len(e) < decidedHeader {
		return id, d, malformed
	}
	by := int(e[decidedHeader-1])
	id, ok := parseID(e[28:92])
	if !ok || len(e) < decidedHeader+by {
		return id, d, malformed
	}
	return id, Decided{
		At:      getTime(e[2:]),
		Attempt: binary.BigEndian.Uint32([]byte(e[8:12])),
		State:   idem.State(e[1]),
		Decision: idem.Decision{
			By:     e[decidedHeader : decidedHeader+by],
			Reason: e[decidedHeader+by:],
		},
	}, nil
}
