package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// No body takes long to compare. The longest ones take a second or two. The work would take
// minutes if it grew with the square of the length.
func TestHostileBodiesAreCheapToCompare(t *testing.T) {
	t.Parallel()
	fill := func(s string) string { return strings.Repeat(s, idem.DefaultMaxRequestBody/len(s)) }
	var alike, distinct, fields strings.Builder
	for i := range 1 << 18 {
		name := []byte("abcdefghijklmnopqr")
		for bit := range name {
			if i>>bit&1 == 1 {
				name[bit] -= 'a' - 'A'
			}
		}
		fmt.Fprintf(&alike, `,"%s":1`, name)
		fmt.Fprintf(&distinct, `,"%d":1`, i*7919)
		fmt.Fprintf(&fields, "%s[]=%d&", name, i)
	}
	const json, form, parts = "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary="
	for name, r := range map[string]idem.RequestParts{
		"names alike":       {ContentType: json, Body: []byte("{" + alike.String()[1:] + "}")},
		"many names":        {ContentType: json, Body: []byte("{" + distinct.String()[1:] + "}")},
		"nested arrays":     {ContentType: json, Body: []byte(fill("["))},
		"nested objects":    {ContentType: json, Body: []byte(fill(`{"a":`))},
		"escapes":           {ContentType: json, Body: []byte(`"` + fill(`\u0061`) + `"`)},
		"a long number":     {ContentType: json, Body: []byte("1e" + fill("9"))},
		"many fields":       {ContentType: form, Body: []byte(fields.String())},
		"brackets":          {ContentType: form, Body: []byte(fill("[]"))},
		"many parts":        {ContentType: parts + "x", Body: []byte(fill("--x\r\n\r\n\r\n") + "--x--\r\n")},
		"headers of a part": {ContentType: parts + "x", Body: []byte("--x\r\n" + fill("a: b\r\n") + "\r\n\r\n--x--\r\n")},
		"almost a boundary": {ContentType: parts + strings.Repeat("a", 69), Body: []byte(fill("\r\n--" + strings.Repeat("a", 68) + "b"))},
		"a long query":      {Query: fill("a=1&")},
		"a long media type": {ContentType: json + ";" + fill("a=b;"), Body: []byte("{}")},
	} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = idem.RequestFingerprint(idem.FingerprintVersion, r)
		}()
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatalf("%s: RequestFingerprint() still works after %v", name, patience)
		}
	}
}

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
