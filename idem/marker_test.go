package idem_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

func TestMarkerSurvivesItsBinaryForm(t *testing.T) {
	fp, err := idem.NewFingerprint(1, "POST /pay", "amount", "10.00")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []driver.Marker{
		{State: driver.StateCompleted, Route: "POST /pay", Fingerprint: fp, Started: time.UnixMilli(1_800_000_000_123).UTC(), ResultTTL: time.Hour, KeyTTL: 30 * 24 * time.Hour,
			Attempt: driver.Attempt{Number: 3, Fence: driver.Fence{Domain: "zookeeper:d", Token: 1<<63 + 5}, Nonce: driver.NewNonce()}},
		{State: driver.StateUnknown, Kind: driver.IssuedToken, Route: strings.Repeat("r", 255), Started: time.UnixMilli(1).UTC(),
			Attempt: driver.Attempt{Number: 1, Fence: driver.Fence{Domain: strings.Repeat("d", 255), Token: 1}}},
		{State: driver.StateUnknown, Started: time.UnixMilli(1).UTC(), Attempt: driver.Attempt{Number: 1, Fence: driver.Fence{Domain: "no route"}}},
		{State: driver.StateUnknown, Started: time.UnixMilli(1).UTC(), KeyTTL: math.MaxUint32 * time.Second},
	} {
		data, err := want.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		var got driver.Marker
		if err := got.UnmarshalBinary(data); err != nil || got != want {
			t.Errorf("UnmarshalBinary() = %+v, %v; want %+v", got, err, want)
		}
		for n := range len(data) - len(want.Route) {
			if err := got.UnmarshalBinary(data[:n]); err == nil {
				t.Errorf("UnmarshalBinary() of the first %d bytes of %d = nil, want an error", n, len(data))
			}
		}
	}
}

func TestMarkerRefusesWhatItCannotHold(t *testing.T) {
	for name, m := range map[string]driver.Marker{
		"long domain": {State: driver.StateCompleted, Attempt: driver.Attempt{Fence: driver.Fence{Domain: strings.Repeat("d", 256)}}},
		"long route":  {State: driver.StateCompleted, Route: strings.Repeat("r", 256)},
	} {
		if _, err := m.AppendBinary(nil); err == nil {
			t.Errorf("%s: AppendBinary() = nil, want an error", name)
		}
	}
	for _, state := range []driver.State{driver.StateNone, driver.StateIssued, driver.StatePending, driver.StateReleased, driver.StateExpired, 77} {
		data, err := (&driver.Marker{State: state}).AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := new(driver.Marker).UnmarshalBinary(data); err == nil {
			t.Errorf("UnmarshalBinary() of a marker in state %v = nil, want an error", state)
		}
	}
	var m driver.Marker
	if err := m.UnmarshalBinary([]byte(`{"owner":"somebody else's data, and long enough to be looked at"}            `)); err == nil || m != (driver.Marker{}) {
		t.Errorf("UnmarshalBinary() of other data = %v, %+v", err, m)
	}
}

func TestMarkerOfAnUnknownFormIsRefused(t *testing.T) {
	form, err := (&driver.Marker{State: driver.StateCompleted, Route: "POST /pay"}).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func([]byte) []byte{
		"magic":   func(d []byte) []byte { d[0]++; return d },
		"version": func(d []byte) []byte { d[3] += 2; return d },
		"kind":    func(d []byte) []byte { d[5] = 77; return d },
		"route":   func(d []byte) []byte { return append(d, strings.Repeat("r", 247)...) }, // 256 bytes
	} {
		m := driver.Marker{Route: "as it was"}
		if err := m.UnmarshalBinary(change(append([]byte(nil), form...))); err == nil || m.Route != "as it was" {
			t.Errorf("%s: UnmarshalBinary() = %v, %+v, want an error and the marker as it was", name, err, m)
		}
	}
}
