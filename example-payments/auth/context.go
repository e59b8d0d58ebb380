package auth

import (
	"context"
	"errors"
)

type merchantKey struct{}

// NewContext leaves the merchant in the context of an authenticated request.
func NewContext(ctx context.Context, merchant string) context.Context {
	return context.WithValue(ctx, merchantKey{}, merchant)
}

// MerchantOf is for handlers behind authentication. Elsewhere it is "", which
// owns nothing.
func MerchantOf(ctx context.Context) string {
	m, _ := ctx.Value(merchantKey{}).(string)
	return m
}

// Scope is the idem.ScopeFunc of every route and method: keys belong to the
// merchant.
func Scope(ctx context.Context) (string, error) {
	if m := MerchantOf(ctx); m != "" {
		return m, nil
	}
	return "", errors.New("auth: no merchant in the context")
}
