package idem

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"
)

// IssueToken makes a one-time token for a scope; ttl 0 means DefaultTokenTTL.
// The error is a [*Refusal].
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

// Status tells where a key of a scope stands. The error is a [*Refusal].
//
// By the policies it tells [Status].ResolvesItself: by the one that bears the name
// under which the attempt ran, else by the first that has no name, and so
// stands for every route. Where there is neither it is false.
func (e *Engine) Status(ctx context.Context, scope string, key Key, policies ...*Policy) (Status, error) {
	id := NewKeyID(scope, key)
	call, cancel := context.WithTimeout(ctx, e.cfg.storeTimeout)
	defer cancel()
	rec, err := e.store.Get(call, id)
	if err != nil {
		return Status{}, storeRefusal(err)
	}
	s := Status{State: rec.State}
	if rec.State == StateNone {
		return s, nil
	}
	s.Kind, s.OperationID, s.Attempt, s.Since = rec.Kind, id.OperationID(), rec.Attempt.Number, rec.Since()
	switch rec.State {
	case StateIssued:
		s.ExpiresAt = rec.TokenExpires
	case StateCompleted:
		s.ExpiresAt = rec.ResultExpires
	case StateExpired, StateReleased:
		s.ExpiresAt = rec.KeyExpires
	case StatePending, StateUnknown:
		s.ResolvesItself = resolves(policies, rec.Route)
	}
	return s, nil
}

// resolves tells whether the policy of a route settles what was interrupted.
func resolves(policies []*Policy, route string) bool {
	for _, name := range []string{route, ""} {
		for _, p := range policies {
			if p.Name == name {
				return !p.InDoubt.unanswered()
			}
		}
	}
	return false
}

// Ping returns nil when the lock service and the store would serve a fresh
// key. The error tells operators which of them would not.
func (e *Engine) Ping(ctx context.Context) error {
	lockErr, storeErr := e.locker.Ping(ctx), e.store.Ping(ctx)
	if lockErr != nil {
		lockErr = fmt.Errorf("idem: lock service: %w", lockErr)
	}
	if storeErr != nil {
		storeErr = fmt.Errorf("idem: token store: %w", storeErr)
	}
	return errors.Join(lockErr, storeErr)
}

// tokenBytes of randomness make a token unguessable.
const tokenBytes = 32

// IssueToken makes a one-time token for a scope in a store; ttl 0 means
// [DefaultTokenTTL]. Where the answer of the store is lost, the token expires
// unused. The error is that of [Store.Issue].
func IssueToken(ctx context.Context, store Store, scope string, ttl time.Duration) (Token, error) {
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
