package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// Get returns the record of id, in one statement. On MySQL and MariaDB it takes two, if the record
// was completed less than 15 minutes ago. The error wraps
// driver.ErrNewerRecord, driver.ErrCorruptRecord or driver.ErrUnavailable.
func (s *Store) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	for {
		f, err := s.loadOnly(ctx, "get", id)
		if err != nil {
			return driver.Record{}, err
		}
		if done, err := s.durable(ctx, "get", id, &f); err != nil {
			return driver.Record{}, err
		} else if done {
			e, err := s.entry("get", &f)
			return e.Copy(), err
		}
	}
}

// Issue makes a record in StateIssued. It returns an existing record unchanged. The error
// wraps the same errors as that of [Store.Get], or is [ErrReadOnly].
func (s *Store) Issue(ctx context.Context, id driver.KeyID, ttl time.Duration) (rec driver.Record, err error) {
	if err := s.mayWrite("issue"); err != nil {
		return driver.Record{}, err
	}
	err = s.change(ctx, "issue", id, func(e *rules.Entry, now time.Time) (write *rules.Entry, _ error) {
		if e == nil {
			write = rules.Issue(ttl, now)
			e = write
		}
		rec = e.Copy()
		return write, nil
	})
	if err != nil {
		return driver.Record{}, err
	}
	return rec, nil
}

// Begin starts an attempt. [driver.Store] has the table. A new key of a client takes one
// statement, and any other Begin takes two. The error wraps driver.ErrStaleFence,
// driver.ErrNewerRecord, driver.ErrCorruptRecord or driver.ErrUnavailable. With ErrStaleFence the
// result has the record.
func (s *Store) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (res driver.BeginResult, err error) {
	if err := s.mayWrite("begin", req.Fence.Domain, req.Route); err != nil {
		return res, err
	}
	if s.returning && req.Kind == driver.ClientKey && req.RunAgainFrom == nil {
		if res, err = s.beginFirst(ctx, id, req); res.Begun || err != nil {
			return res, err
		}
	}
	err = s.change(ctx, "begin", id, func(e *rules.Entry, now time.Time) (write *rules.Entry, err error) {
		if write, res, err = rules.Begin(e, req, now); err != nil {
			err = fmt.Errorf("tokenstore/sql: %w", err)
		}
		return write, err
	})
	if err != nil && !errors.Is(err, driver.ErrStaleFence) {
		return driver.BeginResult{}, err
	}
	return res, err
}

// beginFirst starts the first attempt of a key, if the key has no record. Most keys have
// none.
func (s *Store) beginFirst(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (res driver.BeginResult, err error) {
	r, err := pack(rules.Pending(nil, req, time.Time{}))
	if err != nil {
		return res, fmt.Errorf("tokenstore/sql: begin: %w", err)
	}
	args := []any{id[:], newRev()}
	for i, v := range r.values() {
		if !isNow(columns[i]) {
			args = append(args, v)
		}
	}
	var started int64
	err = s.db.QueryRowContext(ctx, s.statements.begin, args...).Scan(&started)
	switch f := s.dialect.Fault(err); {
	case errors.Is(err, sql.ErrNoRows), f == sqldialect.Duplicate, f == sqldialect.Conflict:
		return res, nil
	case err != nil:
		return res, s.failed("begin", err)
	}
	return driver.BeginResult{Begun: true, Record: rules.Pending(nil, req, timeOf(started)).Copy()}, nil
}

// Abort undoes a Begin, or makes the store refuse it if it arrives later. The error wraps
// driver.ErrNewerRecord, driver.ErrCorruptRecord or driver.ErrUnavailable.
func (s *Store) Abort(ctx context.Context, id driver.KeyID, req driver.BeginRequest) error {
	if err := s.mayWrite("abort", req.Fence.Domain); err != nil {
		return err
	}
	return s.change(ctx, "abort", id, func(e *rules.Entry, now time.Time) (*rules.Entry, error) {
		return rules.Abort(e, req, now), nil
	})
}
