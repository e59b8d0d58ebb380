package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strings"
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

// Merchant tells whose key a request carries, from all that it says about
// authorization: that has to be one known bearer token (RFC 6750).
func (k APIKeys) Merchant(authorization []string) (string, bool) {
	if len(authorization) != 1 {
		return "", false
	}
	scheme, token, found := strings.Cut(authorization[0], " ")
	if !found || !strings.EqualFold(scheme, "Bearer") {
		return "", false
	}
	return k.owner(strings.TrimSpace(token))
}

// owner tells whose token this is. How long it takes does not depend on the
// token's contents.
func (k APIKeys) owner(token string) (string, bool) {
	hash := sha256.Sum256([]byte(token))
	found := ""
	for _, key := range k.keys {
		if subtle.ConstantTimeCompare(hash[:], key.hash[:]) == 1 {
			found = key.merchant
		}
	}
	return found, found != ""
}
