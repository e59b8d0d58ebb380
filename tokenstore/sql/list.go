package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

const (
	// defaultOpenLimit is the size of a page for a limit of 0.
	defaultOpenLimit = 1000
	// fewestRead is the least number of records to read in one call. It keeps a listing of
	// a rare state from one call per record of another state.
	fewestRead = 64
)

// ListOpen lists records whose attempt is open and records that cannot be read, oldest first.
// It is one statement, over an index of the open records. A page can be short or empty
// although there are more records. The error wraps driver.ErrUnavailable.
func (s *Store) ListOpen(ctx context.Context, q driver.OpenQuery) (page driver.OpenPage, err error) {
	limit := cmp.Or(max(q.Limit, 0), defaultOpenLimit)
	most := max(limit, fewestRead)
	since, id := int64(math.MinInt64), driver.KeyID{}
	if q.After != nil {
		since, id = micros(q.After.Started), q.After.ID
	}
	// One more than the page tells whether there are more.
	list := s.statements.list
	if q.WithoutResponses {
		list = s.statements.listBare
	}
	rows, err := s.read.QueryContext(ctx, list, q.OlderThan.Microseconds(), since, since, id[:], most+1)
	if err != nil {
		return page, s.failed("open", err)
	}
	defer rows.Close()
	var last *driver.OpenCursor
	for read := 0; rows.Next(); read++ {
		if read == most || len(page.Records) == limit {
			page.Next = last
			break
		}
		row, err := scanOpen(rows)
		if err != nil {
			return driver.OpenPage{}, s.failed("open", err)
		}
		cursor := row.Cursor()
		last = &cursor
		if q.Skip != nil && q.Skip(cursor) {
			continue
		}
		if q.WithoutResponses {
			row.Record.ResponseErr = nil
		}
		// A record that cannot be read may be in any state.
		if row.Err != nil || row.Record.State.Open() && (q.State == driver.StateNone || q.State == row.Record.State) {
			page.Records = append(page.Records, row)
		}
	}
	if err := rows.Err(); err != nil {
		return driver.OpenPage{}, s.failed("open", err)
	}
	return page, nil
}

// scanOpen reads one row of the list of open records.
func scanOpen(rows *sql.Rows) (o driver.OpenRecord, err error) {
	var k []byte
	var f found
	if err := rows.Scan(slices.Insert(f.targets(), 0, any(&k))...); err != nil {
		return o, err
	}
	if len(k) != len(o.ID) {
		return o, fmt.Errorf("a key ID of %d bytes", len(k))
	}
	copy(o.ID[:], k)
	e, err := f.unpack()
	if err != nil {
		o.Record.Started, o.Err = timeOf(*f.OpenSince), fmt.Errorf("tokenstore/sql: open: %w", err)
		return o, nil
	}
	o.Record = e.Copy()
	return o, nil
}
