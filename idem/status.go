package idem

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"time"
)

// tokenBytes of randomness make a token unguessable.
const tokenBytes = 32

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
	var random [tokenBytes]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand, since Go 1.24)
	key := Key(base64.RawURLEncoding.EncodeToString(random[:]))
	call := withTimeout(ctx, e.cfg.storeTimeout)
	defer call.stop()
	// Where the answer is lost the token expires unused.
	rec, err := e.store.Issue(call, NewKeyID(scope, key), orDefault(ttl, DefaultTokenTTL))
	if err != nil {
		return Token{}, storeRefusal(err)
	}
	return Token{Value: key, ExpiresAt: rec.TokenExpires}, nil
}

// Status tells where a key of a scope stands. The error is a [*Refusal].
func (e *Engine) Status(ctx context.Context, scope string, key Key) (Status, error) {
	id := NewKeyID(scope, key)
	call := withTimeout(ctx, e.cfg.storeTimeout)
	defer call.stop()
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
	}
	return s, nil
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
