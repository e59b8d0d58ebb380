package memorystore

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Packing loses nothing, whatever an entry holds.
func TestPackedEntriesComeBack(t *testing.T) {
	t.Parallel()
	base := time.Now()
	text := func(most int) string { return string(make([]byte, rand.IntN(most))) }
	for range 20_000 {
		e := &entry{settlement: idem.NewNonce()}
		r := &e.record
		r.State = []idem.State{idem.StateCompleted, idem.StateExpired}[rand.IntN(2)]
		r.Kind, r.Fingerprint.Version, r.Route = idem.KeyKind(rand.IntN(2)), uint8(rand.IntN(256)), text(300)
		for i := range r.Fingerprint.Sum {
			r.Fingerprint.Sum[i] = byte(rand.IntN(256))
		}
		r.Attempt = idem.Attempt{Number: rand.Uint32(), Fence: idem.Fence{Domain: text(300), Token: rand.Uint64()}, Nonce: idem.NewNonce()}
		r.Decision = idem.Decision{By: text(129), Reason: text(513)}
		for _, at := range timesOf(r) {
			switch rand.IntN(5) {
			case 0: // none
			case 1:
				*at = base.Add(time.Duration(rand.Int64N(3) - 1))
			case 2:
				*at = base.Add(time.Duration(rand.Int64()))
			case 3:
				*at = base.Add(-time.Duration(rand.Int64()))
			case 4:
				*at = base.Add(math.MaxInt64)
			}
		}
		var response []byte
		if rand.IntN(2) == 0 {
			r.Response = &idem.Response{Status: rand.IntN(700) - 100, Omitted: rand.IntN(2) == 0}
			if rand.IntN(2) == 0 {
				r.Response.Body, r.Response.Header = []byte("xyz"), map[string][]string{"A": {"b", ""}, "": nil}
			}
			var err error
			if response, err = r.Response.AppendBinary(nil); err != nil {
				t.Fatal(err)
			}
		}
		if n := len(e.pack(nil, base, response)); n > e.packedSize(response) {
			t.Fatalf("%+v takes %d bytes, at most %d were said", e, n, e.packedSize(response))
		}
		if got := unpack(e.pack(nil, base, response), base); !reflect.DeepEqual(got, e) { //nolint:govet // it has no error inside
			t.Fatalf("unpack(pack(%+v)) = %+v", e, got)
		}
	}
}

// A result that is kept for ever outlives the shorter time of an earlier
// attempt.
func TestResultsKeptForEver(t *testing.T) {
	t.Parallel()
	now := time.Now()
	s := New(WithClock(func() time.Time { return now }))
	id := idem.NewKeyID("m", "k")
	for fence, st := range []idem.Settlement{
		{State: idem.StateReleased, KeyTTL: time.Hour},
		{State: idem.StateCompleted, Response: &idem.Response{Status: 201}, ResultTTL: math.MaxInt64, KeyTTL: math.MaxInt64},
	} {
		got, err := s.Begin(t.Context(), id, idem.BeginRequest{Fence: idem.Fence{Domain: "d", Token: uint64(fence) + 1}, Nonce: idem.NewNonce()})
		if err != nil || !got.Begun {
			t.Fatalf("Begin() = %v, %v", got, err)
		}
		st.Attempt, st.ID = got.Record.Attempt, got.Record.Attempt.Nonce
		if _, err := s.Settle(t.Context(), id, st); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(2 * time.Hour)
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != idem.StateCompleted {
		t.Errorf("Get() after two hours = %v, %v, want it completed", rec.State, err)
	}
}
