package idem

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"time"
)

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
	setDefault(&ttl, DefaultTokenTTL)
	rec, err := store.Issue(ctx, NewKeyID(scope, key), ttl)
	if err != nil {
		return Token{}, err
	}
	return Token{Value: key, ExpiresAt: rec.TokenExpires}, nil
}
