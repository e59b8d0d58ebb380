package payments

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// APIKeys are the accepted bearer tokens, for both transports. Only their hashes
// are kept. The zero value accepts no token.
type APIKeys struct {
	keys      []apiKey
	merchants []string
}

type apiKey struct {
	hash     [sha256.Size]byte
	merchant string
}

// ParseAPIKeys reads "token=merchant,token=merchant". Its errors hold no token.
func ParseAPIKeys(list string) (APIKeys, error) {
	var k APIKeys
	tokens := map[string]bool{}
	for i, pair := range strings.Split(list, ",") {
		token, merchant, ok := strings.Cut(strings.TrimSpace(pair), "=")
		switch {
		case !ok || token == "" || merchant == "" || strings.ContainsAny(pair, " \t"):
			return APIKeys{}, fmt.Errorf("pair %d is not TOKEN=MERCHANT", i+1)
		case tokens[token]:
			return APIKeys{}, fmt.Errorf("pair %d repeats a token", i+1)
		}
		tokens[token] = true
		if !slices.Contains(k.merchants, merchant) {
			k.merchants = append(k.merchants, merchant)
		}
		k.keys = append(k.keys, apiKey{sha256.Sum256([]byte(token)), merchant})
	}
	return k, nil
}

// Merchants lists the owners of the keys, each once.
func (k APIKeys) Merchants() []string { return k.merchants }

// Merchant returns the owner of a request's key. authorization holds all values of
// the request's header or metadata, and must be one known bearer token (RFC 6750).
// The comparison takes the same time for every token.
func (k APIKeys) Merchant(authorization []string) (merchant string, ok bool) {
	if len(authorization) != 1 {
		return "", false
	}
	scheme, token, found := strings.Cut(authorization[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(token)))
	for _, key := range k.keys {
		if subtle.ConstantTimeCompare(hash[:], key.hash[:]) == 1 {
			merchant = key.merchant
		}
	}
	return merchant, merchant != ""
}

type merchantKey struct{}

// WithMerchant puts the merchant into the context of an authenticated request.
func WithMerchant(ctx context.Context, merchant string) context.Context {
	return context.WithValue(ctx, merchantKey{}, merchant)
}

// MerchantOf returns the merchant of an authenticated request, or "".
func MerchantOf(ctx context.Context) string {
	m, _ := ctx.Value(merchantKey{}).(string)
	return m
}

// Scope is the idem.ScopeFunc of every route and method. Each merchant has keys of
// its own.
func Scope(ctx context.Context) (string, error) {
	if m := MerchantOf(ctx); m != "" {
		return m, nil
	}
	return "", errors.New("payments: no merchant in the context")
}
