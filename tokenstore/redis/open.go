package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
)

const (
	// defaultOpenLimit is the size of a page for a limit of 0.
	defaultOpenLimit = 1000
	// fewestRead is the least number of records to read at once. It keeps a query for a
	// rare state from one round trip per record of another state.
	fewestRead = 64
	// inVain bounds the members that one call looks at beside those that it returns:
	// records of another state, and members that are in an open set by mistake.
	inVain = 1000
)

// ListOpen lists records whose attempt is open and records that cannot be read, oldest first.
// It merges the open sets of all shards. It is not one snapshot: a record that begins or
// settles during the call may be missing, and all others are there. The error wraps
// idem.ErrUnavailable.
func (s *Store) ListOpen(ctx context.Context, q idem.OpenQuery) (page idem.OpenPage, err error) {
	limit := cmp.Or(max(q.Limit, 0), defaultOpenLimit)
	at := placeAfter(q.After)
	var last *idem.OpenCursor // of the members that this call has looked at
	size := limit/Shards*2 + 16
	for left := limit + inVain; left > 0; size = min(2*size, defaultOpenLimit) {
		members, more, err := fetchMembers(ctx, s, at, millis(q.OlderThan), size)
		if err != nil {
			return idem.OpenPage{}, err
		}
		for len(members) > 0 && left > 0 {
			n := min(len(members), left, max(limit-len(page.Records), fewestRead))
			rows, err := fetchRows(ctx, s, members[:n])
			if err != nil {
				return idem.OpenPage{}, err
			}
			for i, row := range rows {
				last = &row.at
				if row.selected(q.State) {
					page.Records = append(page.Records, row.OpenRecord)
				}
				if len(page.Records) == limit {
					if more || n < len(members) || i < len(rows)-1 {
						page.Next = last
					}
					return page, nil
				}
			}
			at = members[n-1]
			members, left = members[n:], left-n
		}
		if !more && len(members) == 0 {
			return page, nil
		}
	}
	if last == nil {
		return idem.OpenPage{}, errors.New("tokenstore/redis: open: an open set is full of members that are no key IDs")
	}
	page.Next = last
	return page, nil
}

// openMember is a member of an open set, and a place in the order of all of them.
type openMember struct {
	score  int64
	member string // a key ID in hexadecimal, unless it is there by mistake
}

func (m openMember) compare(n openMember) int {
	return cmp.Or(cmp.Compare(m.score, n.score), strings.Compare(m.member, n.member))
}

// placeAfter is the place to read from; nil: the start.
func placeAfter(c *idem.OpenCursor) openMember {
	if c == nil {
		return openMember{}
	}
	ms := c.Started.UnixMilli()
	if c.Started.After(time.UnixMilli(ms)) { // records start in whole ms
		return openMember{score: ms + 1}
	}
	return openMember{ms, c.ID.String()}
}

// fetchMembers returns the members of all open sets after a place, in order. It asks each
// shard for size members, in one round trip per server. There may be more after them.
func fetchMembers(ctx context.Context, s *Store, after openMember, age string, size int) (members []openMember, more bool, err error) {
	calls := make([]redisscript.Call, Shards)
	for shard := range calls {
		calls[shard] = redisscript.Call{Keys: []string{s.keys.open(shard)}, Args: []any{age, after.score, after.member, size}}
	}
	var end openMember // a full page says nothing about what follows its last member
	for _, cmd := range redisscript.Pipelined(ctx, s.client, openScript, calls, nil) {
		got, err := cmd.StringSlice()
		if err != nil {
			return nil, false, failed(ctx, s.client, "open", err)
		}
		for i := 0; i+1 < len(got); i += 2 {
			score, _ := strconv.ParseFloat(got[i+1], 64) // Redis sends numbers
			members = append(members, openMember{int64(score), got[i]})
		}
		if n := len(got) / 2; n == size {
			if last := members[len(members)-1]; !more || last.compare(end) < 0 {
				more, end = true, last
			}
		}
	}
	slices.SortFunc(members, openMember.compare)
	if more {
		members = slices.DeleteFunc(members, func(m openMember) bool { return m.compare(end) > 0 })
	}
	return members, more, nil
}

// openRow is a row of a listing and its place, which a damaged record does not tell.
type openRow struct {
	idem.OpenRecord
	at idem.OpenCursor
}

// selected reports whether a query for a state lists the row. A record that cannot be
// read may be in any state.
func (r *openRow) selected(state idem.State) bool {
	return r.Err != nil || r.Record.State.Open() && (state == idem.StateNone || state == r.Record.State)
}

// fetchRows reads the records of members, in one round trip per server. It leaves out
// members that are no key IDs.
func fetchRows(ctx context.Context, s *Store, members []openMember) ([]openRow, error) {
	var rows []openRow
	var cmds []*goredis.SliceCmd
	pipe := s.client.Pipeline()
	for _, m := range members {
		if id, ok := parseID(m.member); ok {
			rows = append(rows, openRow{at: idem.OpenCursor{Started: time.UnixMilli(m.score).UTC(), ID: id}})
			cmds = append(cmds, pipe.MGet(ctx, s.keys.record(id), s.keys.body(id)))
		}
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, failed(ctx, s.client, "open", err)
	}
	for i, cmd := range cmds {
		row := &rows[i]
		data, there := cmd.Val()[0].(string)
		// Open records do not expire, so the time does not matter.
		rec, err := decodeRecord(data, bodyOf(cmd.Val()[1]), time.Time{})
		if there && data == "" {
			err = cannotRead(data)
		}
		if err != nil {
			rec, err = idem.Record{Started: row.at.Started}, fmt.Errorf("tokenstore/redis: open: %w", err)
		}
		row.OpenRecord = idem.OpenRecord{ID: row.at.ID, Record: rec, Err: err}
	}
	return rows, nil
}
