package idem

import (
	"bytes"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

var codecResponses = map[string]Response{
	"zero":     {},
	"status":   {Status: 201},
	"negative": {Status: math.MinInt32},
	"omitted":  {Status: 200, Omitted: true},
	"binary body": {Status: 200, Body: []byte{0, 1, 0xff, '\n', 0},
		Header: map[string][]string{"Content-Type": {"application/octet-stream"}}},
	"many values": {Status: 302,
		Header:  map[string][]string{"Etag": {`"a"`}, "Location": {"/a", "", "/ä\x00"}, "Content-Language": {"de, en"}},
		Trailer: map[string][]string{"grpc-status-details-bin": {"\x00\xff"}, "": nil}},
	"large": {Body: bytes.Repeat([]byte("x"), 1<<20)},
}

func TestResponseBinaryRoundTrip(t *testing.T) {
	for name, want := range codecResponses {
		t.Run(name, func(t *testing.T) {
			data, err := want.AppendBinary([]byte("prefix"))
			if err != nil {
				t.Fatalf("AppendBinary() = %v, want nil", err)
			}
			var got Response
			if err := got.UnmarshalBinary(data[len("prefix"):]); err != nil {
				t.Fatalf("UnmarshalBinary(%q) = %v, want nil", data, err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("UnmarshalBinary(%q) gives %+v, want %+v", data, got, want)
			}
		})
	}
}

func TestResponseBinaryIsDeterministic(t *testing.T) {
	r := codecResponses["many values"]
	first, _ := r.AppendBinary(nil)
	for range 50 {
		if again, _ := r.AppendBinary(nil); !bytes.Equal(again, first) {
			t.Fatalf("AppendBinary() = %q, then %q", first, again)
		}
	}
}

func TestResponseBinaryKeepsNoReference(t *testing.T) {
	r := Response{Body: []byte("body"), Header: map[string][]string{"A": {"value"}}}
	data, _ := r.AppendBinary(nil)
	var got Response
	if err := got.UnmarshalBinary(data); err != nil {
		t.Fatal(err)
	}
	clear(data)
	if string(got.Body) != "body" || got.Header["A"][0] != "value" {
		t.Errorf("after the input was overwritten: %+v", got)
	}
}

func TestResponseBinaryRefusesTooManyValues(t *testing.T) {
	r := Response{Header: map[string][]string{"A": make([]string, maxResponseValues+1)}}
	if _, err := r.AppendBinary(nil); err == nil {
		t.Error("AppendBinary() of too many values = nil, want an error")
	}
}

func TestResponseBinaryRefusesOtherForms(t *testing.T) {
	for name, data := range map[string]string{
		"empty":              "",
		"version only":       "\x01",
		"unknown version":    "\x02\x00\x00\x00\x00",
		"unknown flag":       "\x01\x02\x00\x00\x00",
		"no status":          "\x01\x00",
		"no trailer":         "\x01\x00\x00\x00",
		"long varint":        "\x01\x00\x80\x00\x00\x00",
		"overflowing varint": "\x01\x00" + strings.Repeat("\xff", 10) + "\x00\x00",
		"count too high":     "\x01\x00\x00\xff\xff\xff\xff\x0f\x00",
		"length too high":    "\x01\x00\x00\x01\xff\xff\xff\xff\x0f\x00",
		"names out of order": "\x01\x00\x00\x02\x01b\x00\x01a\x00\x00",
		"name twice":         "\x01\x00\x00\x02\x01a\x00\x01a\x00\x00",
	} {
		var r Response
		if err := r.UnmarshalBinary([]byte(data)); err == nil {
			t.Errorf("%s: UnmarshalBinary(%q) = nil, want an error", name, data)
		}
	}
}

// A count that the input has no room for must not be believed.
func TestResponseBinaryDoesNotOverAllocate(t *testing.T) {
	data := append([]byte{1, 0, 0}, 0x80, 0x20)          // 4,096 names
	data = append(data, bytes.Repeat([]byte{0}, 100)...) // and room for 50
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		_ = new(Response).UnmarshalBinary(data)
	}
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / 100; got > 4096 {
		t.Errorf("UnmarshalBinary() of %d hostile bytes allocated %d bytes", len(data), got)
	}
}

func FuzzResponseUnmarshalBinary(f *testing.F) {
	for _, r := range codecResponses {
		if data, err := r.AppendBinary(nil); err == nil && len(data) < 4096 {
			f.Add(data)
		}
	}
	f.Add([]byte("\x01\x00\x00\xff\xff\xff\xff\x0f\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Response
		if r.UnmarshalBinary(data) != nil {
			return
		}
		again, err := r.AppendBinary(nil)
		if err != nil {
			t.Fatalf("AppendBinary() of what UnmarshalBinary(%q) gave = %v, want nil", data, err)
		}
		if !bytes.Equal(again, data) {
			t.Fatalf("AppendBinary() = %q, want %q", again, data)
		}
	})
}

func BenchmarkResponseBinary(b *testing.B) {
	r := Response{Status: 201, Body: bytes.Repeat([]byte("x"), 180),
		Header: map[string][]string{"Content-Type": {"application/json"}, "Location": {"/v1/payments/42"}}}
	buf, _ := r.AppendBinary(nil)
	b.Run("append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = r.AppendBinary(buf[:0])
		}
	})
	b.Run("unmarshal", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var out Response
			_ = out.UnmarshalBinary(buf)
		}
	})
}
