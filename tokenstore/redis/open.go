package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
)

const (
	// defaultOpenLimit is the size of a page for a limit of 0.
	defaultOpenLimit = 1000
	// fewestRead is the least number of records to read in one call. It keeps a listing of
	// a rare state from one call per record of another state.
	fewestRead = 64
	// mostMembers bounds how many members of one open set a call looks at.
	mostMembers = 10_000
)

// ListOpen lists records whose attempt is open and records that cannot be read, oldest first.
// It merges the open sets of all shards. It is not one snapshot. A record that begins or
// settles during the call may be missing, and all others are there. A page can be short
// or empty although there are more records. If some servers of a cluster do not answer, the
// page has the records of the others, and there is an error too. The error wraps driver.ErrUnavailable.
func (s *Store) ListOpen(ctx context.Context, q driver.OpenQuery) (page driver.OpenPage, err error) {
	limit := cmp.Or(max(q.Limit, 0), defaultOpenLimit)
	var places []driver.OpenCursor
	more := true
	for size := limit/Shards*2 + 16; more && len(places) == 0; size *= 2 {
		if size > max(mostMembers, limit) {
			return page, errors.New("tokenstore/redis: open: an open set is full of members that are no key IDs")
		}
		if places, more, err = s.openPlaces(ctx, q, size); len(places) == 0 && err != nil {
			return page, err
		}
	}
	if len(places) == 0 {
		return page, nil
	}
	next := places[len(places)-1]
	wanted := places[:0]
	for _, p := range places {
		if q.Skip != nil && q.Skip(p) {
			continue
		}
		if len(wanted) == max(limit, fewestRead) {
			next, more = wanted[len(wanted)-1], true
			break
		}
		wanted = append(wanted, p)
	}
	rows, failed := s.openRecords(ctx, wanted, q.WithoutResponses)
	err = cmp.Or(err, failed)
	for i, row := range rows {
		if row.ID == (driver.KeyID{}) { // its server does not answer
			continue
		}
		// A record that cannot be read may be in any state.
		if row.Err != nil || row.Record.State.Open() && (q.State == driver.StateNone || q.State == row.Record.State) {
			page.Records = append(page.Records, row)
		}
		if len(page.Records) == limit && i < len(rows)-1 {
			next, more = wanted[i], true
			break
		}
	}
	if more {
		page.Next = &next
	}
	return page, err
}

// openPlaces returns the places of the open records after q.After, in order. It asks each
// shard for size members of its open set, in one round trip per server, and leaves out
// members without the form of a key ID. There may be more places after them.
func (s *Store) openPlaces(ctx context.Context, q driver.OpenQuery, size int) (places []driver.OpenCursor, more bool, err error) {
	score, member := int64(0), ""
	if q.After != nil {
		score, member = q.After.Started.UnixMilli(), q.After.ID.String()
		if q.After.Started.After(time.UnixMilli(score)) { // records start in whole ms
			score, member = score+1, ""
		}
	}
	calls := make([]redisscript.Call, Shards)
	for shard := range calls {
		calls[shard] = redisscript.Call{Keys: []string{s.keys.open(shard)}, Args: []string{millis(q.OlderThan), strconv.FormatInt(score, 10), member, strconv.Itoa(size)}}
	}
	var ends []driver.OpenCursor // full sets say nothing about the members after their last one
	for _, cmd := range s.askAllServers(ctx, openScript, calls) {
		got, failed := cmd.StringSlice()
		if failed != nil { // other shards may be at other servers
			err = cmp.Or(err, s.failed(ctx, "open", failed))
			continue
		}
		var last driver.OpenCursor
		for i := 0; i+1 < len(got); i += 2 {
			ms, _ := strconv.ParseFloat(got[i+1], 64) // Redis sends numbers
			if id, ok := parseID(got[i]); ok {
				last = driver.OpenCursor{Started: time.UnixMilli(int64(ms)).UTC(), ID: id}
				places = append(places, last)
			}
		}
		if len(got) == 2*size {
			ends = append(ends, last)
		}
	}
	slices.SortFunc(places, driver.OpenCursor.Compare)
	if len(ends) == 0 {
		return places, false, err
	}
	end := slices.MinFunc(ends, driver.OpenCursor.Compare)
	return slices.DeleteFunc(places, func(p driver.OpenCursor) bool { return p.Compare(end) > 0 }), true, err
}

// openRecords reads the records at some places, in one round trip per server. Those of
// servers that do not answer stay zero, and there is an error then.
func (s *Store) openRecords(ctx context.Context, places []driver.OpenCursor, bare bool) (rows []driver.OpenRecord, err error) {
	if len(places) == 0 {
		return nil, nil
	}
	rows = make([]driver.OpenRecord, len(places))
	cmds := make([]*goredis.SliceCmd, len(places))
	pipe := s.client.Pipeline()
	for i, p := range places {
		keys := []string{s.keys.record(p.ID), s.keys.body(p.ID)}
		if bare {
			keys = keys[:1]
		}
		cmds[i] = pipe.MGet(ctx, keys...)
	}
	_, _ = pipe.Exec(ctx) // each command has its error
	for i, p := range places {
		got, failed := cmds[i].Result()
		if failed != nil {
			err = cmp.Or(err, s.failed(ctx, "open", failed))
			continue
		}
		row := &rows[i]
		row.ID = p.ID
		// Open records do not expire, so the time does not matter.
		if row.Record, row.Err = decodeValues(got[0], append(got, nil)[1], time.Time{}); row.Err != nil {
			row.Record.Started, row.Err = p.Started, fmt.Errorf("tokenstore/redis: open: %w", row.Err)
		}
		if bare {
			row.Record.Response, row.Record.ResponseErr = nil, nil
		}
	}
	return rows, err
}
