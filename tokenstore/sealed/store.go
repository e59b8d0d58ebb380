package sealed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var _ driver.Store = (*Store)(nil)

// wrapped gives Store the methods without responses.
type wrapped = driver.Store

// Store seals the responses of another [driver.Store]. It is safe for concurrent use. Make
// it with [New].
type Store struct {
	wrapped
	ring  *Ring
	plain bool
	log   *slog.Logger
}

// Option configures a [Store]. A nil option is ignored.
type Option func(*Store)

// WithPlain accepts plain responses, while some are left from the time before sealing. By
// default they are unreadable, because a writer of the token store could have put them
// there. New responses are sealed either way.
func WithPlain() Option { return func(s *Store) { s.plain = true } }

// WithLogger sets the logger for warnings. The store warns when it cannot open a response
// and hands it out as omitted. [slog.Default] by default.
func WithLogger(log *slog.Logger) Option {
	return func(s *Store) {
		if log != nil {
			s.log = log
		}
	}
}

// New returns a Store. It seals responses with the ring's first key and puts them into
// store. The caller closes store, and keeps it for methods beyond [driver.Store], such as
// accepting a loss.
func New(store driver.Store, ring *Ring, opts ...Option) (*Store, error) {
	if store == nil {
		return nil, errors.New("tokenstore/sealed: New needs a store")
	}
	if ring == nil || len(ring.keys) == 0 {
		return nil, errors.New("tokenstore/sealed: New needs a ring with a key")
	}
	s := &Store{wrapped: store, ring: ring, log: slog.Default()}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	return s, nil
}

// MustNew is [New] for known-good wiring. Like [regexp.MustCompile] it panics where New returns an
// error.
func MustNew(store driver.Store, ring *Ring, opts ...Option) *Store {
	return must(New(store, ring, opts...))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Get returns the record with its response opened. If the response of a completed record
// cannot be opened, the error wraps ErrUnreadable and driver.ErrUnavailable, and Get returns
// the record too, with its response omitted.
func (s *Store) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	rec, err := s.wrapped.Get(ctx, id)
	return s.opened(ctx, "get", id, rec, err)
}

// opened is what a call that reads one record returns.
func (s *Store) opened(ctx context.Context, call string, id driver.KeyID, rec driver.Record, err error) (driver.Record, error) {
	unreadable := s.open(id, &rec)
	switch {
	case err != nil || unreadable == nil:
		return rec, err
	case rec.State == driver.StateCompleted:
		return rec, fmt.Errorf("tokenstore/sealed: %s %s: %w: %w", call, id.OperationID(), unreadable, driver.ErrUnavailable)
	}
	s.warn(ctx, call, id, unreadable)
	return rec, nil
}

// Issue makes a record in StateIssued, or returns the existing record. An unreadable
// response is omitted.
func (s *Store) Issue(ctx context.Context, id driver.KeyID, ttl time.Duration) (driver.Record, error) {
	rec, err := s.wrapped.Issue(ctx, id, ttl)
	s.warn(ctx, "issue", id, s.open(id, &rec))
	return rec, err
}

// Begin starts an attempt if the record allows it. An unreadable response is omitted.
func (s *Store) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (driver.BeginResult, error) {
	res, err := s.wrapped.Begin(ctx, id, req)
	s.warn(ctx, "begin", id, s.open(id, &res.Record))
	return res, err
}

// Settle seals the response and closes the attempt, or marks it unknown. If another
// settlement stands and its response cannot be opened, that response is omitted. A sealed
// response is longer. If it is too long for the wrapped store, the error wraps
// driver.ErrResponseInvalid.
func (s *Store) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (driver.SettleResult, error) {
	return s.settle(ctx, id, st, func(st driver.Settlement) (driver.SettleResult, error) { return s.wrapped.Settle(ctx, id, st) })
}

// settle seals the response for a call that settles, and opens the response of its answer.
func (s *Store) settle(ctx context.Context, id driver.KeyID, st driver.Settlement, call func(driver.Settlement) (driver.SettleResult, error)) (driver.SettleResult, error) {
	given := st.Response
	switch {
	case st.State == driver.StateReleased:
		st.Response = nil // a released record has no response
	case given != nil:
		sealed, err := s.ring.seal(place{id, st.Attempt}, given)
		if err != nil {
			return driver.SettleResult{}, fmt.Errorf("tokenstore/sealed: settle: %w", err)
		}
		st.Response = sealed
	}
	res, err := call(st)
	if rec := &res.Record; rec.Response != nil && rec.Response == st.Response {
		rec.Response = given // the response that was just sealed
	} else {
		s.warn(ctx, "settle", id, s.open(id, rec))
	}
	return res, err
}

// ListOpen lists open records. Unreadable responses are omitted.
func (s *Store) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	page, err := s.wrapped.ListOpen(ctx, q)
	bad, first := 0, error(nil)
	for i := range page.Records {
		row := &page.Records[i]
		if err := s.open(row.ID, &row.Record); err != nil {
			if bad++; first == nil {
				first = err
			}
		}
	}
	if bad > 0 {
		s.log.WarnContext(ctx, "stored responses cannot be opened", slog.String("call", "open"), slog.Int("count", bad), slog.Any("err", first))
	}
	return page, err
}

// open opens the response of a record from the wrapped store. If that fails, the error says
// why, and an omitted response takes its place.
func (s *Store) open(id driver.KeyID, rec *driver.Record) error {
	stored := rec.Response
	switch {
	case stored == nil || bare(stored):
		return nil
	case !marked(stored) && s.plain:
		return nil
	}
	// The wrapped store may still own the response, so this makes a new one.
	rec.Response = &driver.Response{Status: stored.Status, Omitted: true}
	if !marked(stored) {
		return fmt.Errorf("%w: it is not sealed", ErrUnreadable)
	}
	opened, err := s.ring.open(place{id, rec.Attempt}, stored)
	if err == nil {
		rec.Response = opened
	}
	return err
}

func (s *Store) warn(ctx context.Context, call string, id driver.KeyID, err error) {
	if err != nil {
		s.log.WarnContext(ctx, "a stored response cannot be opened", slog.String("call", call), slog.String("op", id.OperationID()), slog.Any("err", err))
	}
}
