package driver

import (
	"bytes"
	"testing"
	"time"
)

// Znodes may hold any bytes. A marker that is accepted is written as it was read.
func FuzzMarkerUnmarshalBinary(f *testing.F) {
	good := Marker{State: StateUnknown, Route: "POST /pay", Attempt: Attempt{Number: 1, Fence: Fence{Domain: "d", Token: 7}}}
	data, err := good.AppendBinary(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add(data[:len(data)-1])
	f.Add([]byte("idm\x01"))
	good.ResultTTL, good.KeyTTL = time.Hour, 24*time.Hour
	data, err = good.AppendBinary(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		var m Marker
		if m.UnmarshalBinary(data) != nil {
			if m != (Marker{}) {
				t.Fatalf("a refused form left %+v", m)
			}
			return
		}
		again, err := m.AppendBinary(nil)
		if err != nil || !bytes.Equal(again, data) {
			t.Fatalf("%x became %x, %v", data, again, err)
		}
	})
}
