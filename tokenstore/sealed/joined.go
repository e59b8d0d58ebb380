package sealed

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var (
	_ driver.JoinedStore = (*Joined)(nil)
	_ driver.JoinedTx    = (*joinedTx)(nil)
)

// Joined is a [Store] for [idem.NewJoined]. It seals the responses that commit together with
// what a handler writes. It is safe for concurrent use. Make it with [NewJoined].
type Joined struct {
	*Store
	joined driver.JoinedStore
}

// NewJoined returns a Joined, as [New] returns a Store. The handler gets its transaction as
// without it.
func NewJoined(store driver.JoinedStore, ring *Ring, opts ...Option) (*Joined, error) {
	s, err := New(store, ring, opts...)
	if err != nil {
		return nil, err
	}
	return &Joined{Store: s, joined: store}, nil
}

// MustNewJoined is [NewJoined] for known-good wiring. Like [regexp.MustCompile] it panics where
// NewJoined returns an error.
func MustNewJoined(store driver.JoinedStore, ring *Ring, opts ...Option) *Joined {
	return must(NewJoined(store, ring, opts...))
}

// BeginJoined opens a transaction. It may be the only look at the record of a repeat, so the error for a response that cannot
// be opened is that of Get. No attempt has begun then.
func (j *Joined) BeginJoined(ctx context.Context, id driver.KeyID, req driver.JoinedRequest) (driver.JoinedBegin, error) {
	begin, err := j.joined.BeginJoined(ctx, id, req)
	begin.Record, err = j.opened(ctx, "begin", id, begin.Record, err)
	if begin.Tx != nil {
		begin.Tx = &joinedTx{JoinedTx: begin.Tx, store: j.Store, id: id}
	}
	return begin, err
}

// BeginWithoutKey is that of the wrapped store, because nothing is stored of the response.
func (j *Joined) BeginWithoutKey(ctx context.Context, handlerTimeout time.Duration) (driver.JoinedTx, error) {
	return j.joined.BeginWithoutKey(ctx, handlerTimeout)
}

// Held is that of the wrapped store.
func (j *Joined) Held(ctx context.Context, id driver.KeyID) (bool, error) {
	return j.joined.Held(ctx, id)
}

// Probe returns the record with its response opened. The error for a response that cannot be
// opened is that of Get.
func (j *Joined) Probe(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	rec, err := j.joined.Probe(ctx, id)
	return j.opened(ctx, "probe", id, rec, err)
}

// Bind is that of the wrapped store.
func (j *Joined) Bind(ctx context.Context, id driver.KeyID, fp driver.Fingerprint, ttl time.Duration) (driver.Fingerprint, error) {
	return j.joined.Bind(ctx, id, fp, ttl)
}

// joinedTx seals the response of one attempt.
type joinedTx struct {
	driver.JoinedTx
	store *Store
	id    driver.KeyID
}

// Unwrap returns the transaction of the wrapped store, for [idem.JoinedTxOf].
func (t *joinedTx) Unwrap() driver.JoinedTx { return t.JoinedTx }

// Commit seals the response, which a completed record always has, and commits.
func (t *joinedTx) Commit(ctx context.Context, s driver.Settlement) error {
	sealed, err := t.store.ring.seal(place{t.id, s.Attempt}, s.Response)
	if err != nil {
		return fmt.Errorf("tokenstore/sealed: commit: %w", err)
	}
	s.Response = sealed
	return t.JoinedTx.Commit(ctx, s)
}
