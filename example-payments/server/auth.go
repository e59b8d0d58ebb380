package server

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"

	"github.com/gin-gonic/gin"
)

// APIKeys are the bearer tokens that are accepted. Only their hashes are kept.
// The zero value accepts none.
type APIKeys struct {
	keys      []apiKey
	merchants []string
}

type apiKey struct {
	hash     [sha256.Size]byte
	merchant string
}

// ParseAPIKeys reads "token=merchant,token=merchant".
func ParseAPIKeys(list string) (APIKeys, error) {
	var k APIKeys
	tokens, merchants := map[string]bool{}, map[string]bool{}
	for i, pair := range strings.Split(list, ",") {
		token, merchant, ok := strings.Cut(strings.TrimSpace(pair), "=")
		switch { // without the pair itself: it holds a secret
		case !ok || token == "" || merchant == "" || strings.ContainsAny(pair, " \t"):
			return APIKeys{}, fmt.Errorf("pair %d is not TOKEN=MERCHANT", i+1)
		case tokens[token]:
			return APIKeys{}, fmt.Errorf("pair %d repeats a token", i+1)
		}
		tokens[token] = true
		if !merchants[merchant] {
			merchants[merchant] = true
			k.merchants = append(k.merchants, merchant)
		}
		k.keys = append(k.keys, apiKey{sha256.Sum256([]byte(token)), merchant})
	}
	return k, nil
}

// Merchants lists whom the keys belong to, each once.
func (k APIKeys) Merchants() []string { return k.merchants }

// merchant tells whose token this is. How long it takes does not depend on the
// token's contents.
func (k APIKeys) merchant(token string) (string, bool) {
	hash := sha256.Sum256([]byte(token))
	found := ""
	for _, key := range k.keys {
		if subtle.ConstantTimeCompare(hash[:], key.hash[:]) == 1 {
			found = key.merchant
		}
	}
	return found, found != ""
}

type merchantKey struct{}

// scope is the [idem.ScopeFunc] of every route: keys belong to the merchant.
func scope(ctx context.Context) (string, error) {
	if m, ok := ctx.Value(merchantKey{}).(string); ok {
		return m, nil
	}
	return "", errors.New("server: no merchant in the context")
}

// merchantOf is for handlers behind authenticate.
func merchantOf(c *gin.Context) string {
	m, _ := c.Request.Context().Value(merchantKey{}).(string)
	return m
}

// authenticate lets requests with one known bearer token through (RFC 6750)
// and leaves the merchant in their context.
func (s *Server) authenticate(c *gin.Context) {
	merchant, ok := "", false
	if h := c.Request.Header.Values("Authorization"); len(h) == 1 {
		if scheme, token, found := strings.Cut(h[0], " "); found && strings.EqualFold(scheme, "Bearer") {
			merchant, ok = s.cfg.Keys.merchant(strings.TrimSpace(token))
		}
	}
	if !ok {
		c.Header("WWW-Authenticate", `Bearer realm="payments"`)
		abort(c, codeUnauthorized, "Send Authorization: Bearer and a known API key.")
		return
	}
	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), merchantKey{}, merchant))
}
