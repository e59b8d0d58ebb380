package idem

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// IssueToken makes a one-time token for a scope. A ttl of 0 means DefaultTokenTTL. The error is
// a [*Refusal].
func (e *Engine) IssueToken(ctx context.Context, scope string, ttl time.Duration) (Token, error) {
	if ttl < 0 {
		return Token{}, refuse(CodeInternal, fmt.Errorf("idem: token for %v", ttl))
	}
	if !e.work.add() {
		return Token{}, refuse(CodeUnavailable, errClosed)
	}
	defer e.work.done()
	call, cancel := context.WithTimeout(ctx, e.cfg.storeTimeout)
	defer cancel()
	token, err := IssueToken(call, e.store, scope, ttl)
	if err != nil {
		return Token{}, storeRefusal(err)
	}
	return token, nil
}

// Status describes a key of a scope. The error is a [*Refusal].
//
// The policies decide [Status].ResolvesItself. The policy with the name of the attempt counts,
// or else the first one without a name, because that stands for every route. Without either it
// is false.
func (e *Engine) Status(ctx context.Context, scope string, key Key, policies ...*Policy) (Status, error) {
	id := NewKeyID(scope, key)
	call, cancel := context.WithTimeout(ctx, e.cfg.storeTimeout)
	defer cancel()
	rec, err := e.store.Get(call, id)
	if err == nil {
		rec, err = e.mode.seen(call, id, rec)
	}
	if err != nil {
		return Status{}, storeRefusal(err)
	}
	s := Status{State: rec.State}
	if rec.State == driver.StateNone {
		return s, nil
	}
	s.Kind, s.OperationID, s.Attempt, s.Since = rec.Kind, id.OperationID(), rec.Attempt.Number, rec.Since()
	switch rec.State {
	case driver.StateIssued:
		s.ExpiresAt = rec.TokenExpires
	case driver.StateCompleted:
		s.ExpiresAt = rec.ResultExpires
	case driver.StateExpired, driver.StateReleased:
		s.ExpiresAt = rec.KeyExpires
	case driver.StatePending, driver.StateUnknown:
		s.ResolvesItself = resolves(policies, &rec)
	}
	return s, nil
}

// resolves reports whether the policy of its route settles an interrupted attempt.
func resolves(policies []*Policy, rec *driver.Record) bool {
	for _, name := range []string{rec.Route, ""} {
		for _, p := range policies {
			if p.Name == name {
				return p.settles(rec.Attempt)
			}
		}
	}
	return false
}

// Ping returns nil if the lock service and the store would serve a fresh key. The error names
// the one that would not.
func (e *Engine) Ping(ctx context.Context) error {
	lockErr, storeErr := e.mode.ping(ctx), e.store.Ping(ctx)
	if lockErr != nil {
		lockErr = fmt.Errorf("idem: lock service: %w", lockErr)
	}
	if storeErr != nil {
		storeErr = fmt.Errorf("idem: token store: %w", storeErr)
	}
	return errors.Join(lockErr, storeErr)
}

// tokenBytes is how much randomness makes a token unguessable.
const tokenBytes = 32

// IssueToken makes a one-time token for a scope in a store. A ttl of 0 means [DefaultTokenTTL].
// If the answer of the store is lost, the token expires unused. The error is that of
// [driver.Store.Issue].
func IssueToken(ctx context.Context, store driver.Store, scope string, ttl time.Duration) (Token, error) {
	if ttl < 0 {
		return Token{}, fmt.Errorf("idem: token for %v", ttl)
	}
	var random [tokenBytes]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand, since Go 1.24)
	key := Key(base64.RawURLEncoding.EncodeToString(random[:]))
	rec, err := store.Issue(ctx, NewKeyID(scope, key), cmp.Or(ttl, DefaultTokenTTL))
	if err != nil {
		return Token{}, err
	}
	return Token{Value: key, ExpiresAt: rec.TokenExpires}, nil
}
