package sealed

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// here is where the responses of these tests belong.
func here() place {
	return place{idem.NewKeyID("merchant", "key"), driver.Attempt{Number: 3, Nonce: driver.Nonce{1, 2, 3},
		Fence: driver.Fence{Domain: "f47ac10b-58cc-4372-a567-0e02b2c3d479", Token: 1 << 40}}}
}

func payment() *driver.Response {
	return &driver.Response{Status: 201,
		Header:  map[string][]string{"Content-Type": {"application/json"}, "Location": {"/v1/payments/pay_secret"}},
		Trailer: map[string][]string{"grpc-status-details-bin": {"trailer secret"}},
		Body:    []byte(`{"id":"pay_secret","note":"body secret"}`)}
}

func mustSeal(tb testing.TB, r *Ring, at place, resp *driver.Response) *driver.Response {
	tb.Helper()
	sealed, err := r.seal(at, resp)
	if err != nil {
		tb.Fatalf("seal(%v) = %v, want <nil>", at, err)
	}
	return sealed
}

// packed is a response as stores keep it.
func packed(tb testing.TB, r *driver.Response) []byte {
	tb.Helper()
	b, err := r.AppendBinary(nil)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func TestSealedResponsesComeBack(t *testing.T) {
	ring := ringOf(t, "k1")
	for name, resp := range map[string]*driver.Response{
		"nothing":               {},
		"payment":               payment(),
		"status only":           {Status: 204},
		"negative status":       {Status: -1, Body: []byte("x")},
		"large":                 {Status: 200, Body: bytes.Repeat([]byte("x"), 1<<20)},
		"omitted, with header":  {Status: 200, Omitted: true, Header: map[string][]string{"Location": {"/v1/payments/pay_secret"}}},
		"omitted, with body":    {Status: 200, Omitted: true, Body: []byte("body secret")},
		"omitted, with trailer": {Status: 200, Omitted: true, Trailer: map[string][]string{"grpc-status-details-bin": {"trailer secret"}}},
		"with the marker":       {Status: 200, Header: map[string][]string{Marker: {"mine"}}},
	} {
		sealed := mustSeal(t, ring, here(), resp)
		if raw := packed(t, sealed); bytes.Contains(raw, []byte("secret")) || bytes.Contains(raw, []byte("mine")) || bytes.Contains(raw, []byte("Location")) {
			t.Errorf("%s: sealed = %q, which shows it", name, raw)
		}
		if sealed.Status != resp.Status || !sealed.Omitted {
			t.Errorf("%s: sealed = %d, omitted %v, want %d and omitted for those who know nothing of sealing", name, sealed.Status, sealed.Omitted, resp.Status)
		}
		if got, err := ring.open(here(), sealed); err != nil || !reflect.DeepEqual(got, resp) {
			t.Errorf("%s: open(seal()) = %+v, %v, want %+v", name, got, err, resp)
		}
	}
	one, two := mustSeal(t, ring, here(), payment()), mustSeal(t, ring, here(), payment())
	if bytes.Equal(one.Body, two.Body) {
		t.Error("seal() twice = equal bytes, want a nonce for each")
	}
	bare := &driver.Response{Status: 200, Omitted: true}
	if got := mustSeal(t, ring, here(), bare); got != bare {
		t.Errorf("seal(%+v) = %+v, want it as it is", bare, got)
	}
	many := map[string][]string{"X": make([]string, 5000)}
	if _, err := ring.seal(here(), &driver.Response{Header: many}); !errors.Is(err, driver.ErrResponseInvalid) {
		t.Errorf("seal(5000 values) = %v, want %v", err, driver.ErrResponseInvalid)
	}
}

// A response with one changed bit is not handed out.
func TestChangedBitsAreRefused(t *testing.T) {
	ring := ringOf(t, "k1", "k0", "i1", "j1", "k3", "k5", "k9") // IDs that a bit away from k1, too
	raw := packed(t, mustSeal(t, ring, here(), payment()))
	s := &Store{ring: ring}
	opened := func(raw []byte) (*driver.Response, error) {
		var stored driver.Response
		if err := stored.UnmarshalBinary(raw); err != nil {
			return nil, err
		}
		rec := driver.Record{Attempt: here().attempt, Response: &stored}
		err := s.open(here().id, &rec)
		return rec.Response, err
	}
	if got, err := opened(raw); err != nil || !reflect.DeepEqual(got, payment()) {
		t.Fatalf("open = %+v, %v, want the payment", got, err)
	}
	for i := range raw {
		for bit := range 8 {
			changed := bytes.Clone(raw)
			changed[i] ^= 1 << bit
			if got, err := opened(changed); err == nil || got != nil && (len(got.Body) > 0 || len(got.Header) > 0) {
				t.Errorf("byte %d, bit %d changed: open = %+v, %v, want it refused", i, bit, got, err)
			}
		}
	}
	for n := range raw {
		if got, err := opened(raw[:n]); err == nil {
			t.Errorf("cut off after %d bytes: open = %+v, want it refused", n, got)
		}
	}
	if got, err := opened(append(bytes.Clone(raw), 0)); err == nil {
		t.Errorf("with a byte behind: open = %+v, want it refused", got)
	}
}

// A response sealed for one place is refused at every other.
func TestMovedResponsesAreRefused(t *testing.T) {
	ring := ringOf(t, "k1")
	sealed := mustSeal(t, ring, here(), payment())
	for name, move := range map[string]func(*place, *driver.Response){
		"key ID":  func(p *place, _ *driver.Response) { p.id[31]++ },
		"number":  func(p *place, _ *driver.Response) { p.attempt.Number++ },
		"token":   func(p *place, _ *driver.Response) { p.attempt.Fence.Token++ },
		"domain":  func(p *place, _ *driver.Response) { p.attempt.Fence.Domain += "x" },
		"nonce":   func(p *place, _ *driver.Response) { p.attempt.Nonce[15]++ },
		"status":  func(_ *place, r *driver.Response) { r.Status++ },
		"plus 64": func(_ *place, r *driver.Response) { r.Status += 1 << 32 },
		"shown":   func(_ *place, r *driver.Response) { r.Omitted = false },
		"trailer": func(_ *place, r *driver.Response) { r.Trailer = map[string][]string{"X": nil} },
		"header":  func(_ *place, r *driver.Response) { r.Header = map[string][]string{Marker: {""}, "Set-Cookie": {"x"}} },
		"values":  func(_ *place, r *driver.Response) { r.Header = map[string][]string{Marker: {"", ""}} },
	} {
		at, moved := here(), *sealed
		move(&at, &moved)
		if got, err := ring.open(at, &moved); !errors.Is(err, ErrUnreadable) {
			t.Errorf("another %s: open = %+v, %v, want %v", name, got, err, ErrUnreadable)
		}
	}
	if _, err := ring.open(here(), sealed); err != nil {
		t.Errorf("unmoved: open = %v, want <nil>", err)
	}
}

// Parts of the bound data cannot be taken for one another.
func TestBoundDataIsUnambiguous(t *testing.T) {
	seen := map[string]string{}
	for _, id := range []string{"k", "k1", "k11"} {
		for _, domain := range []string{"", "1", "11", "k"} {
			for _, status := range []int{0, 200, -200} {
				at := here()
				at.attempt.Fence.Domain = domain
				what := fmt.Sprintf("%q %q %d", id, domain, status)
				bound := string(at.bind(id, status))
				if other, ok := seen[bound]; ok {
					t.Errorf("bind(%s) = bind(%s)", what, other)
				}
				seen[bound] = what
			}
		}
	}
}

func TestRotation(t *testing.T) {
	old, both, fresh := ringOf(t, "k1"), ringOf(t, "k2", "k1"), ringOf(t, "k2")
	before, after := mustSeal(t, old, here(), payment()), mustSeal(t, both, here(), payment())
	for _, tt := range []struct {
		name   string
		ring   *Ring
		sealed *driver.Response
		names  string // in the error; "" where it opens
	}{
		{"before, opened by both", both, before, ""},
		{"after, opened by both", both, after, ""},
		{"after, opened by the new one", fresh, after, ""},
		{"before, without the old key", fresh, before, `"k1"`},
		{"after, without the new key", old, after, `"k2"`},
	} {
		_, err := tt.ring.open(here(), tt.sealed)
		if tt.names == "" && err != nil || tt.names != "" && (!errors.Is(err, ErrUnreadable) || !strings.Contains(err.Error(), tt.names)) {
			t.Errorf("%s: open = %v, want an error that names %q, or none", tt.name, err, tt.names)
		}
	}
	ring := ringFrom(t, "k1="+text("imposter"))
	if got, err := ring.open(here(), before); !errors.Is(err, ErrUnreadable) {
		t.Errorf("another secret under the same ID: open = %+v, %v, want %v", got, err, ErrUnreadable)
	}
}

// The name of the key is authenticated too, also where another name stands for
// the same secret.
func TestRingKeyIDIsBound(t *testing.T) {
	ring := ringFrom(t, "k1="+text("k1")+",k2="+text("k1"))
	sealed := mustSeal(t, ring, here(), payment())
	sealed.Body = bytes.Replace(sealed.Body, []byte("k1"), []byte("k2"), 1)
	if got, err := ring.open(here(), sealed); !errors.Is(err, ErrUnreadable) {
		t.Errorf("with another name of the key: open = %+v, %v, want %v", got, err, ErrUnreadable)
	}
}

// Sealing costs 64 bytes and the ring key's ID.
func TestLengthOfSealed(t *testing.T) {
	for _, id := range []string{"k", "k1", strings.Repeat("k", maxKeyID)} {
		resp := payment()
		if got, want := len(packed(t, mustSeal(t, ringOf(t, id), here(), resp))), len(packed(t, resp))+64+len(id); got != want {
			t.Errorf("sealed under %q = %d bytes, want %d", id, got, want)
		}
	}
}

// golden is the payment as version 1 has sealed it, in version 2 of the form of responses.
const golden = "01026b31c011a121810fd309c558dd29b3a864a0edd8f4d2f58dc7a95644a46b6c2223bb493c0c0e95340a42b247b146" +
	"89f8de2314b9ccbbfadbf8acc7fd9505cb58d2abbf453117b52d1e02120411adf239be2931788c71035d090e591ecdb5" +
	"c2590debf2b392a6d74b8dac521eeda61b215420f5dd294edbc81b2eb16a4f5239cacae3d583b558fe2e3c856d22772c" +
	"97ccd0683edd57e891d1b2987cd9a95b8c28428107f639717ce6e6340a7a3af46afdba8e09593eb47a2ae777852229"

func goldenResponse(tb testing.TB) *driver.Response {
	tb.Helper()
	body, err := hex.DecodeString(golden)
	if err != nil {
		tb.Fatal(err)
	}
	return &driver.Response{Status: 201, Header: map[string][]string{Marker: {""}}, Body: body, Omitted: true}
}

// A later build may store responses in a form that this one cannot read. Such a response is
// not taken for an empty one.
func TestSealedResponseOfALaterForm(t *testing.T) {
	ring := ringOf(t, "k1")
	k := &ring.keys[0]
	plain := packed(t, payment())
	plain[0]++ // the version of the form
	sealed := mustSeal(t, ring, here(), payment())
	sealed.Body = k.aead.Seal(sealed.Body[:2+len(k.id)], nil, plain, here().bind(k.id, sealed.Status))
	if got, err := ring.open(here(), sealed); !errors.Is(err, ErrUnreadable) {
		t.Errorf("open = %+v, %v, want %v", got, err, ErrUnreadable)
	}
}

// Every other form has another version.
func TestSealedFormIsFixed(t *testing.T) {
	if got, err := ringOf(t, "k1").open(here(), goldenResponse(t)); err != nil || !reflect.DeepEqual(got, payment()) {
		t.Errorf("open(golden) = %+v, %v, want the payment", got, err)
	}
}

func FuzzOpen(f *testing.F) {
	ring := ringOf(f, "k1")
	good := goldenResponse(f)
	f.Add(201, good.Body)
	f.Add(200, good.Body)
	f.Add(201, good.Body[:30])
	f.Add(0, []byte{1})
	f.Add(0, []byte{1, 255, 'k'})
	f.Add(0, append([]byte{1, 2}, "k1"...))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		given := &driver.Response{Status: status, Header: map[string][]string{Marker: {""}}, Body: slices.Clone(body), Omitted: true}
		got, err := ring.open(here(), given)
		genuine := status == good.Status && bytes.Equal(body, good.Body)
		if genuine != (err == nil) || (got == nil) != (err != nil) || err != nil && !errors.Is(err, ErrUnreadable) {
			t.Errorf("open(%d, %x) = %+v, %v, want it only where it is genuine: %v", status, body, got, err, genuine)
		}
		if !bytes.Equal(given.Body, body) {
			t.Errorf("open(%d, %x) has changed what it was given", status, body)
		}
	})
}

func BenchmarkSealOpen(b *testing.B) {
	ring := ringOf(b, "k1")
	resp := &driver.Response{Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: bytes.Repeat([]byte("x"), 1<<10)}
	sealed := mustSeal(b, ring, here(), resp)
	b.Run("seal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			mustSeal(b, ring, here(), resp)
		}
	})
	b.Run("open", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := ring.open(here(), sealed); err != nil {
				b.Fatal(err)
			}
		}
	})
}
