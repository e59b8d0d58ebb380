package redisstore

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// sampleRecord is a record as settle.lua writes it.
func sampleRecord(tb testing.TB, state driver.State, place byte, rest string) string {
	tb.Helper()
	a := driver.Attempt{Number: 7, Fence: driver.Fence{Domain: "zk-1", Token: 1<<63 + 1}, Nonce: driver.Nonce{1, 2, 15: 3}}
	fp := driver.Fingerprint{Version: 1, Sum: [32]byte{9, 31: 8}}
	at := func(s int64) string { return packTime(time.Unix(s, 5e6)) }
	r := string([]byte{recordVersion, byte(state), byte(driver.IssuedToken), place}) + packAttempt(a) +
		"0123456789abcdef" + packFingerprint(fp) + at(1) + at(2) + at(3) + at(4) + at(5) + at(6) +
		"\x04\x05\x02\x00\x03" + "\x01" + "zk-1" + "route" + "me" + "why" + rest
	return r
}

func TestDecodeRecord(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 5e6).UTC() }
	want := driver.Record{
		State: driver.StateCompleted, Kind: driver.IssuedToken, Route: "route",
		Attempt:     driver.Attempt{Number: 7, Fence: driver.Fence{Domain: "zk-1", Token: 1<<63 + 1}, Nonce: driver.Nonce{1, 2, 15: 3}},
		Fingerprint: driver.Fingerprint{Version: 1, Sum: [32]byte{9, 31: 8}},
		Response:    &driver.Response{Status: 200, Body: []byte("hi")},
		Created:     at(1), Started: at(2), Settled: at(3), ResultExpires: at(4), KeyExpires: at(5), TokenExpires: at(6),
		Decision: driver.Decision{By: "me", Reason: "why"},
	}
	packed, _ := want.Response.AppendBinary(nil)
	for name, tt := range map[string]struct{ data, body string }{
		"inline": {sampleRecord(t, driver.StateCompleted, placeInline, string(packed)), ""},
		"apart":  {sampleRecord(t, driver.StateCompleted, placeApart, ""), string(packed)},
	} {
		got, err := decodeRecord(tt.data, tt.body, at(3))
		if err != nil || !reflect.DeepEqual(got, want) { //nolint:govet // neither has an error inside
			t.Errorf("%s: decodeRecord() = %+v, %v, want %+v", name, got, err, want)
		}
		if got, err := decodeRecord(tt.data, tt.body, at(4)); err != nil || got.State != driver.StateExpired || got.Response != nil {
			t.Errorf("%s: decodeRecord() once the result expired = %v, %v, want expired", name, got.State, err)
		}
		if got, err := decodeRecord(tt.data, tt.body, at(5)); err != nil || got.State != driver.StateNone {
			t.Errorf("%s: decodeRecord() once the key expired = %v, %v, want none", name, got.State, err)
		}
	}
}

func TestDecodeRecordRefuses(t *testing.T) {
	good := sampleRecord(t, driver.StateCompleted, placeNowhere, "")
	for name, tt := range map[string]struct {
		data string
		want error
	}{
		"newer version":       {"\x03" + good[1:], driver.ErrNewerRecord},
		"newer, shorter":      {"\x03", driver.ErrNewerRecord},
		"older version":       {"\x01" + good[1:], driver.ErrCorruptRecord},
		"version 0":           {"\x00" + good[1:], driver.ErrCorruptRecord},
		"cut in header":       {good[:headerSize-1], driver.ErrCorruptRecord},
		"cut behind no texts": {good[:atLengths] + "\x00\x00\x00\x00\x00", driver.ErrCorruptRecord},
		"cut in texts":        {good[:len(good)-1], driver.ErrCorruptRecord},
		"state none":          {good[:1] + "\x00" + good[2:], driver.ErrCorruptRecord},
		"state expired":       {good[:1] + "\x06" + good[2:], driver.ErrCorruptRecord},
		"unknown kind":        {good[:2] + "\x02" + good[3:], driver.ErrCorruptRecord},
		"unknown place":       {good[:3] + "\x03" + good[4:], driver.ErrCorruptRecord},
	} {
		if got, err := decodeRecord(tt.data, "", time.Unix(0, 0)); !errors.Is(err, tt.want) {
			t.Errorf("%s: decodeRecord() = %+v, %v, want %v", name, got, err, tt.want)
		}
	}
}

func TestDomainsArePackedAndUnpacked(t *testing.T) {
	const text = "f47ac10b-58cc-4372-a567-0e02b2c3d479"
	for domain, size := range map[string]int{
		"": 0, "zk-1": 4, text: 17, text + "/other/root": 28, text[:35]: 35, "F" + text[1:]: 36, "x" + text: 37,
	} {
		packed := packDomain(domain)
		if got := unpackDomain(packed); got != domain || len(packed) != size {
			t.Errorf("unpackDomain(packDomain(%q)) = %q by way of %d bytes, want %d", domain, got, len(packed), size)
		}
	}
	s := open(t, connect(t, "redis://"+startMini(t).Addr()))
	id, req := newAttempt(driver.ClientKey)
	req.Fence.Domain = packDomain(text) // as a text it would be read as another domain
	if _, err := s.Begin(t.Context(), id, req); err == nil || !strings.Contains(err.Error(), "zero byte") {
		t.Errorf("Begin() in a domain with a zero byte in front = %v, want a refusal", err)
	}
}

func TestDecodeRecordWithoutAReadableResponse(t *testing.T) {
	packed, _ := (&driver.Response{Status: 200, Body: []byte("hi")}).AppendBinary(nil)
	before, after := time.Unix(2, 0), time.Unix(4, 0) // it is kept until 4.005 s
	for name, tt := range map[string]struct {
		data, body string
		now        time.Time
		state      driver.State
		damaged    bool
	}{
		"nonsense":                   {sampleRecord(t, driver.StateUnknown, placeInline, "nonsense"), "", before, driver.StateUnknown, true},
		"nothing":                    {sampleRecord(t, driver.StateCompleted, placeInline, ""), "", before, driver.StateCompleted, true},
		"none was kept":              {sampleRecord(t, driver.StateUnknown, placeNowhere, ""), "", before, driver.StateUnknown, false},
		"none was kept, extended":    {sampleRecord(t, driver.StateUnknown, placeNowhere, "x"), "", before, driver.StateUnknown, true},
		"apart, the record extended": {sampleRecord(t, driver.StateUnknown, placeApart, "x"), string(packed), before, driver.StateUnknown, true},
		"apart, gone":                {sampleRecord(t, driver.StateCompleted, placeApart, ""), "", before, driver.StateExpired, false},
		"apart, empty":               {sampleRecord(t, driver.StateCompleted, placeApart, ""), cutOff, before, driver.StateCompleted, true},
		"apart, gone, unknown":       {sampleRecord(t, driver.StateUnknown, placeApart, ""), "", after, driver.StateUnknown, true},
	} {
		got, err := decodeRecord(tt.data, tt.body, tt.now)
		if err != nil || got.State != tt.state || got.Response != nil || errors.Is(got.ResponseErr, driver.ErrResponseDamaged) != tt.damaged {
			t.Errorf("%s: decodeRecord() = %v with %v, %v, %v; want %v, damaged %v", name, got.State, got.Response, got.ResponseErr, err, tt.state, tt.damaged)
		}
	}
}

func FuzzDecodeRecord(f *testing.F) {
	packed, _ := (&driver.Response{Status: 200, Body: []byte("hi"), Header: map[string][]string{"A": {"b"}}}).AppendBinary(nil)
	for _, state := range []driver.State{driver.StateIssued, driver.StatePending, driver.StateCompleted, driver.StateReleased, driver.StateUnknown} {
		f.Add(sampleRecord(f, state, placeInline, string(packed)), "", int64(3))
		f.Add(sampleRecord(f, state, placeApart, ""), string(packed), int64(3))
	}
	f.Add("", "", int64(0))
	f.Fuzz(func(t *testing.T, data, body string, now int64) {
		rec, err := decodeRecord(data, body, time.UnixMilli(now))
		if err != nil {
			return
		}
		if rec.Response != nil && rec.State != driver.StateCompleted && rec.State != driver.StateUnknown {
			t.Errorf("decodeRecord(%q) = a response in state %v", data, rec.State)
		}
		if rec.State > driver.StateExpired || rec.State != driver.StateNone && len(data) < headerSize {
			t.Errorf("decodeRecord(%q) = state %v", data, rec.State)
		}
	})
}
