package sealed

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

var _ idem.Store = (*Store)(nil)

// Store is an [idem.Store] that seals the responses of another one. It is safe
// for concurrent use. Make it with [New].
type Store struct {
	store idem.Store
	ring  *Ring
	plain bool
	log   *slog.Logger
}

// Option configures a [Store].
type Option func(*Store)

// WithPlain accepts responses that are not sealed, for the time in which some
// are left from before. Without it they count as unreadable: who can write to
// the token store could put them there. New ones are sealed either way.
func WithPlain() Option { return func(s *Store) { s.plain = true } }

// WithLogger sets where the store warns of responses that it could not open and
// handed out as omitted. [slog.Default] by default.
func WithLogger(log *slog.Logger) Option {
	return func(s *Store) {
		if log != nil {
			s.log = log
		}
	}
}

// New returns a store that seals with the ring's first key what it puts into
// store, which stays the caller's to close. Whoever needs more of that one than
// an [idem.Store] has, such as accepting a loss, keeps it.
func New(store idem.Store, ring *Ring, opts ...Option) (*Store, error) {
	if store == nil {
		return nil, errors.New("tokenstore/sealed: New needs a store")
	}
	if ring == nil || len(ring.keys) == 0 {
		return nil, errors.New("tokenstore/sealed: New needs a ring with a key")
	}
	s := &Store{store: store, ring: ring, log: slog.Default()}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	return s, nil
}

// Get returns the record, its response opened. For a completed one whose
// response cannot be opened, the error wraps ErrUnreadable and
// idem.ErrUnavailable, and the record comes beside it with its response omitted.
func (s *Store) Get(ctx context.Context, id idem.KeyID) (idem.Record, error) {
	rec, err := s.store.Get(ctx, id)
	unreadable := s.open(id, &rec)
	switch {
	case err != nil || unreadable == nil:
		return rec, err
	case rec.State == idem.StateCompleted:
		return rec, fmt.Errorf("tokenstore/sealed: get %s: %w: %w", id.OperationID(), unreadable, idem.ErrUnavailable)
	}
	s.warn(ctx, "get", id, unreadable)
	return rec, nil
}

// Issue makes a record in StateIssued. One that exists is returned as it is; a
// response that cannot be opened is omitted.
func (s *Store) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (idem.Record, error) {
	rec, err := s.store.Issue(ctx, id, ttl)
	s.warn(ctx, "issue", id, s.open(id, &rec))
	return rec, err
}

// Begin starts an attempt where the record allows it. A response that it found
// and cannot open is omitted.
func (s *Store) Begin(ctx context.Context, id idem.KeyID, req idem.BeginRequest) (idem.BeginResult, error) {
	res, err := s.store.Begin(ctx, id, req)
	s.warn(ctx, "begin", id, s.open(id, &res.Record))
	return res, err
}

// Settle seals the response and closes the attempt, or marks it unknown. The
// response of somebody else's settlement that cannot be opened is omitted.
// Sealing makes a response longer, which may be more than the wrapped store can
// hold: the error wraps idem.ErrResponseInvalid then.
func (s *Store) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (idem.SettleResult, error) {
	given := st.Response
	switch {
	case st.State == idem.StateReleased:
		st.Response = nil // which nobody reads
	case given != nil:
		sealed, err := s.ring.seal(place{id, st.Attempt}, given)
		if err != nil {
			return idem.SettleResult{}, fmt.Errorf("tokenstore/sealed: settle: %w", err)
		}
		st.Response = sealed
	}
	res, err := s.store.Settle(ctx, id, st)
	if rec := &res.Record; rec.Response != nil && rec.Response == st.Response {
		rec.Response = given // it is what was just sealed
		return res, err
	}
	s.warn(ctx, "settle", id, s.open(id, &res.Record))
	return res, err
}

// Abort undoes a Begin whose answer never came.
func (s *Store) Abort(ctx context.Context, id idem.KeyID, req idem.BeginRequest) error {
	return s.store.Abort(ctx, id, req)
}

// Open lists open records. Responses that cannot be opened are omitted.
func (s *Store) Open(ctx context.Context, q idem.OpenQuery) (idem.OpenPage, error) {
	page, err := s.store.Open(ctx, q)
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

// Retire records that a lock domain is dead.
func (s *Store) Retire(ctx context.Context, domain string, d idem.Decision) error {
	return s.store.Retire(ctx, domain, d)
}

// Retired reports whether a lock domain was retired.
func (s *Store) Retired(ctx context.Context, domain string) (bool, error) {
	return s.store.Retired(ctx, domain)
}

// Ping asks the wrapped store.
func (s *Store) Ping(ctx context.Context) error { return s.store.Ping(ctx) }

// Reach is that of the wrapped store.
func (s *Store) Reach() idem.Reach { return s.store.Reach() }

// open opens the response of a record as the wrapped store returned it. Where it
// cannot be opened, the error says why and an omitted one takes its place.
func (s *Store) open(id idem.KeyID, rec *idem.Record) error {
	stored := rec.Response
	switch {
	case stored == nil || bare(stored):
		return nil
	case !marked(stored) && s.plain:
		return nil
	}
	// The record is the caller's; what it points to may be the store's.
	rec.Response = &idem.Response{Status: stored.Status, Omitted: true}
	if !marked(stored) {
		return fmt.Errorf("%w: it is not sealed", ErrUnreadable)
	}
	opened, err := s.ring.open(place{id, rec.Attempt}, stored)
	if err == nil {
		rec.Response = opened
	}
	return err
}

func (s *Store) warn(ctx context.Context, call string, id idem.KeyID, err error) {
	if err != nil {
		s.log.WarnContext(ctx, "a stored response cannot be opened", slog.String("call", call), slog.String("op", id.OperationID()), slog.Any("err", err))
	}
}
