package idem_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// A token cannot be guessed, and a guess leaves nothing. The store looks for a hash of it, so the
// time of an answer does not tell how much of a guess is right.
func TestTokensCannotBeGuessed(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens = true }})
	seen := map[idem.Key]bool{}
	for range 1000 {
		token, err := b.engine.IssueToken(t.Context(), "m", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		const bits = 6 // of a character
		if seen[token.Value] || len(token.Value)*bits < 256 {
			t.Fatalf("token %q was issued before, or has less than 256 bits", token.Value)
		}
		seen[token.Value] = true
	}
	b.locks.FailBefore("TryAcquire", idemtest.Every, errors.New("a guess asks for a lock"))
	for token := range seen {
		id := idem.NewKeyID("m", token).String()
		for _, near := range []idem.Key{token[:len(token)-1], token + "A", "A" + token, idem.Key(id), token[:len(token)-1] + "-", idem.Key(strings.ToLower(string(token)))} {
			if seen[near] {
				continue
			}
			op := idem.Operation{Scope: "m", Key: near, Policy: &b.policy, Fingerprint: idem.FingerprintOf("pay")}
			reads := b.faults.Calls("Get")
			_, err := b.engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) {
				t.Errorf("the guess %q runs", near)
				return idem.Response{}, nil
			})
			b.wantRefused(err, idem.CodeTokenUnknown)
			if n := b.faults.Calls("Get") - reads; n != 1 {
				t.Errorf("the guess %q cost %d reads of the store, want 1", near, n)
			}
			if rec, err := b.store.Get(t.Context(), idem.NewKeyID("m", near)); rec.State != driver.StateNone || err != nil {
				t.Errorf("the guess %q left %v, %v", near, rec.State, err)
			}
		}
		break
	}
}
