package driver

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

var codecResponses = map[string]Response{
	"zero":                   {},
	"status":                 {Status: 201},
	"negative":               {Status: math.MinInt32},
	"omitted":                {Status: 200, Omitted: true},
	"traced":                 {Status: 201, Body: []byte("{}"), Span: Span{TraceID: [16]byte{1, 15: 2}, SpanID: [8]byte{3, 7: 4}}},
	"span of an omitted one": {Omitted: true, Span: Span{SpanID: [8]byte{1}}},
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
	r.Header["A"] = r.Header["A"][1:]
	if _, err := r.AppendBinary(nil); err != nil {
		t.Errorf("AppendBinary() of as many values as a response may have = %v, want <nil>", err)
	}
}

// sealed is the binary form with this content, its length and checksum right.
func sealed(version, flags byte, content string) []byte {
	data := append([]byte{version, flags, 0, 0, 0, 0, 0, 0, 0, 0}, content...)
	binary.BigEndian.PutUint32(data[responseLength:], uint32(len(content)))
	binary.BigEndian.PutUint32(data[responseChecksum:], checksum(data))
	return data
}

func TestResponseBinaryRefusesOtherForms(t *testing.T) {
	for name, data := range map[string][]byte{
		"empty":              nil,
		"version only":       {1},
		"older version":      sealed(responseVersion-1, 0, "\x00\x00\x00"),
		"unknown flag":       sealed(responseVersion, 4, "\x00\x00\x00"),
		"no span":            sealed(responseVersion, 2, "\x00\x00\x00"),
		"zero span":          sealed(responseVersion, 2, strings.Repeat("\x00", 24)+"\x00\x00\x00"),
		"no status":          sealed(responseVersion, 0, ""),
		"no trailer":         sealed(responseVersion, 0, "\x00\x00"),
		"long varint":        sealed(responseVersion, 0, "\x80\x00\x00\x00"),
		"overflowing varint": sealed(responseVersion, 0, strings.Repeat("\xff", 10)+"\x00\x00"),
		"count too high":     sealed(responseVersion, 0, "\x00\xff\xff\xff\xff\x0f\x00"),
		"length too high":    sealed(responseVersion, 0, "\x00\x01\xff\xff\xff\xff\x0f\x00"),
		"names out of order": sealed(responseVersion, 0, "\x00\x02\x01b\x00\x01a\x00\x00"),
		"name twice":         sealed(responseVersion, 0, "\x00\x02\x01a\x00\x01a\x00\x00"),
	} {
		var r Response
		if err := r.UnmarshalBinary(data); !errors.Is(err, ErrResponseDamaged) {
			t.Errorf("%s: UnmarshalBinary(%q) = %v, want %v", name, data, err, ErrResponseDamaged)
		}
	}
}

// Every other form has another version.
func TestResponseFormIsFixed(t *testing.T) {
	const want = "02" + "02" + "00000034" + "978abea6" +
		"01000000000000000000000000000002" + "0300000000000004" + "9203" +
		"01" + "0c" + "436f6e74656e742d54797065" + "01" + "04" + "742f706c" + "01" + "01" + "58" + "00" + "6869"
	r := codecResponses["traced"]
	r.Header, r.Trailer, r.Body = map[string][]string{"Content-Type": {"t/pl"}}, map[string][]string{"X": nil}, []byte("hi")
	data, err := r.AppendBinary(nil)
	if got := hex.EncodeToString(data); got != want || err != nil {
		t.Errorf("AppendBinary() = %s, %v, want %s", got, err, want)
	}
}

func TestResponseBinaryTellsANewerForm(t *testing.T) {
	var r Response
	if err := r.UnmarshalBinary(sealed(responseVersion+1, 0x80, "something else")); !errors.Is(err, ErrNewerRecord) {
		t.Errorf("UnmarshalBinary(a newer version) = %v, want %v", err, ErrNewerRecord)
	}
}

// What was cut off, extended or changed must never be replayed.
func TestResponseBinaryFindsDamage(t *testing.T) {
	r := Response{Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(`{"id":"pay_1","amount":1250}`)}
	data, _ := r.AppendBinary(nil)
	check := func(what string, damaged []byte) {
		t.Helper()
		got := Response{Status: 7}
		if err := got.UnmarshalBinary(damaged); !errors.Is(err, ErrResponseDamaged) || got.Status != 7 || got.Body != nil {
			t.Fatalf("%s: UnmarshalBinary() = %+v, %v, want %v and no change", what, got, err, ErrResponseDamaged)
		}
	}
	for n := range data {
		check(fmt.Sprintf("cut to %d bytes", n), data[:n])
		for bit := range 8 {
			changed := bytes.Clone(data)
			changed[n] ^= 1 << bit
			check(fmt.Sprintf("bit %d of byte %d changed", bit, n), changed)
		}
	}
	check("extended", append(bytes.Clone(data), '}'))
	check("twice", append(bytes.Clone(data), data...))
}

// A count that the input has no room for must not be believed.
func TestResponseBinaryDoesNotOverAllocate(t *testing.T) {
	for name, content := range map[string]string{
		"4,096 names, and room for 50":   "\x00\x80\x20" + strings.Repeat("\x00", 100),
		"4,096 values, and room for 100": "\x00\x01\x01a\x80\x20" + strings.Repeat("\x00", 100),
	} {
		data := sealed(responseVersion, 0, content)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range 100 {
			_ = new(Response).UnmarshalBinary(data)
		}
		runtime.ReadMemStats(&after)
		if got := (after.TotalAlloc - before.TotalAlloc) / 100; got > 8192 {
			t.Errorf("%s: UnmarshalBinary() of %d hostile bytes allocated %d bytes", name, len(data), got)
		}
	}
}

// The checksum would keep the fuzzer from the parser, so that it is made right
// for what the fuzzer has chosen; as it came, almost nothing is accepted.
func FuzzResponseUnmarshalBinary(f *testing.F) {
	for _, r := range codecResponses {
		if data, err := r.AppendBinary(nil); err == nil && len(data) < 4096 {
			f.Add(data[0], data[1], data[responseContent:], uint16(0), byte(0))
		}
	}
	f.Add(byte(responseVersion), byte(0), []byte("\x00\xff\xff\xff\xff\x0f\x00"), uint16(3), byte(1))
	f.Fuzz(func(t *testing.T, version, flags byte, content []byte, at uint16, change byte) {
		data := sealed(version, flags, string(content))
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
		if cut := data[:int(at)%len(data)]; r.UnmarshalBinary(cut) == nil {
			t.Fatalf("UnmarshalBinary(%q) = nil, want an error", cut)
		}
		if data[int(at)%len(data)] ^= change; change != 0 && r.UnmarshalBinary(data) == nil {
			t.Fatalf("UnmarshalBinary(%q) = nil, want an error", data)
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
