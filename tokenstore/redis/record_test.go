package redis

import (
	"encoding/hex"
	"reflect"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// sampleRecord is a record as settle.lua writes it.
func sampleRecord(tb testing.TB, state idem.State, place byte, rest string) string {
	tb.Helper()
	a := idem.Attempt{Number: 7, Fence: idem.Fence{Domain: "zk-1", Token: 1<<63 + 1}, Nonce: idem.Nonce{1, 2, 15: 3}}
	fp := idem.Fingerprint{Version: 1, Sum: [32]byte{9, 31: 8}}
	at := func(s int64) string { return packTime(time.Unix(s, 5e6)) }
	r := string([]byte{recordVersion, byte(state), byte(idem.IssuedToken), place}) + packAttempt(a) +
		"0123456789abcdef" + packFingerprint(fp) + at(1) + at(2) + at(3) + at(4) + at(5) + at(6) +
		"\x04\x05\x02\x00\x03" + "\x01" + "zk-1" + "route" + "me" + "why" + rest
	return r
}

func TestDecodeRecord(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 5e6).UTC() }
	want := idem.Record{
		State: idem.StateCompleted, Kind: idem.IssuedToken, Route: "route",
		Attempt:     idem.Attempt{Number: 7, Fence: idem.Fence{Domain: "zk-1", Token: 1<<63 + 1}, Nonce: idem.Nonce{1, 2, 15: 3}},
		Fingerprint: idem.Fingerprint{Version: 1, Sum: [32]byte{9, 31: 8}},
		Response:    &idem.Response{Status: 200, Body: []byte("hi")},
		Created:     at(1), Started: at(2), Settled: at(3), ResultExpires: at(4), KeyExpires: at(5), TokenExpires: at(6),
		Decision: idem.Decision{By: "me", Reason: "why"},
	}
	packed, _ := want.Response.AppendBinary(nil)
	for name, tt := range map[string]struct{ data, body string }{
		"inline": {sampleRecord(t, idem.StateCompleted, placeInline, string(packed)), ""},
		"apart":  {sampleRecord(t, idem.StateCompleted, placeApart, ""), string(packed)},
	} {
		got, err := decodeRecord(tt.data, tt.body, at(3))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: decodeRecord() = %+v, %v, want %+v", name, got, err, want)
		}
		if got, err := decodeRecord(tt.data, tt.body, at(4)); err != nil || got.State != idem.StateExpired || got.Response != nil {
			t.Errorf("%s: decodeRecord() once the result expired = %v, %v, want expired", name, got.State, err)
		}
		if got, err := decodeRecord(tt.data, tt.body, at(5)); err != nil || got.State != idem.StateNone {
			t.Errorf("%s: decodeRecord() once the key expired = %v, %v, want none", name, got.State, err)
		}
	}
}

func TestDecodeRecordRefuses(t *testing.T) {
	good := sampleRecord(t, idem.StateCompleted, placeNowhere, "")
	for name, data := range map[string]string{
		"newer version":   "\x02" + good[1:],
		"cut in header":   good[:headerSize-1],
		"cut in texts":    good[:len(good)-1],
		"state none":      good[:1] + "\x00" + good[2:],
		"state expired":   good[:1] + "\x06" + good[2:],
		"unknown kind":    good[:2] + "\x02" + good[3:],
		"broken response": sampleRecord(t, idem.StateUnknown, placeInline, "nonsense"),
	} {
		if got, err := decodeRecord(data, "", time.Unix(0, 0)); err == nil {
			t.Errorf("%s: decodeRecord() = %+v, want an error", name, got)
		}
	}
}

// What is in Redis today has to be readable by every later build.
func TestRecordFormatIsFixed(t *testing.T) {
	const want = "01030101" + "00000007" + "8000000000000001" + "01020000000000000000000000000003" +
		"30313233343536373839616263646566" +
		"01" + "0900000000000000000000000000000000000000000000000000000000000008" +
		"0000000003ed" + "0000000007d5" + "000000000bbd" + "000000000fa5" + "00000000138d" + "000000001775" +
		"0405020003" + "01" + "7a6b2d31" + "726f757465" + "6d65" + "776879"
	if got := hex.EncodeToString([]byte(sampleRecord(t, idem.StateCompleted, placeInline, ""))); got != want {
		t.Errorf("record = %s, want %s", got, want)
	}
}

func FuzzDecodeRecord(f *testing.F) {
	packed, _ := (&idem.Response{Status: 200, Body: []byte("hi"), Header: map[string][]string{"A": {"b"}}}).AppendBinary(nil)
	for _, state := range []idem.State{idem.StateIssued, idem.StatePending, idem.StateCompleted, idem.StateReleased, idem.StateUnknown} {
		f.Add(sampleRecord(f, state, placeInline, string(packed)), "", int64(3))
		f.Add(sampleRecord(f, state, placeApart, ""), string(packed), int64(3))
	}
	f.Add("", "", int64(0))
	f.Fuzz(func(t *testing.T, data, body string, now int64) {
		rec, err := decodeRecord(data, body, time.UnixMilli(now))
		if err != nil {
			return
		}
		if rec.Response != nil && rec.State != idem.StateCompleted && rec.State != idem.StateUnknown {
			t.Errorf("decodeRecord(%q) = a response in state %v", data, rec.State)
		}
		if rec.State > idem.StateExpired || rec.State != idem.StateNone && len(data) < headerSize {
			t.Errorf("decodeRecord(%q) = state %v", data, rec.State)
		}
	})
}
