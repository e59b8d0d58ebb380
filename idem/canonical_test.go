package idem

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestCanonicalJSON(t *testing.T) {
	deep := strings.Repeat("[", maxJSONDepth) + strings.Repeat("]", maxJSONDepth)
	digits := strings.Repeat("7", maxJSONNumber)
	tests := []struct{ name, body, want string }{
		{"member order", `{"b":1,"a":2}`, `{"a":2,"b":1}`},
		{"member order, nested", `{"b":{"z":[{"d":1,"c":2}],"y":0},"a":2}`, `{"a":2,"b":{"y":0,"z":[{"c":2,"d":1}]}}`},
		{"order of arrays is kept", `[3,1,2]`, `[3,1,2]`},
		{"space", " {\r\n\t\"a\" : [ 1 , 2 ] }\n", `{"a":[1,2]}`},
		{"empty object and array", `{ "b" : [ ] , "a" : { } }`, `{"a":{},"b":[]}`},
		{"escapes", `"\u0041\/\u00e9\ud83d\ude00\u000a\u001f\u0022\u005c"`, `"A/é😀\n\u001f\"\\"`},
		{"escaped backspace and space", `"\u0008\u0020"`, `"\b "`},
		{"upper-case hexadecimal", `"\u001F\uD83D\uDE00"`, `"\u001f😀"`},
		{"escaped NUL", `"\u0000"`, `"\u0000"`},
		{"all short escapes", `"\b\f\n\r\t\"\\\/"`, `"\b\f\n\r\t\"\\/"`},
		{"names sort without regard to case", `{"\\":1,"a":2,"Z":3,"\n":4,"\u0001":5,"":6}`, `{"":6,"\\":1,"\n":4,"\u0001":5,"a":2,"Z":3}`},
		{"names that differ in case keep their order", `{"z":0,"b":1,"B":2,"a":3}`, `{"a":3,"b":1,"B":2,"z":0}`},
		{"also the other way round", `{"B":2,"z":0,"b":1,"a":3}`, `{"a":3,"B":2,"b":1,"z":0}`},
		{"other names sort in between", `{"TO":1,"note":2,"Amount":3,"to":4,"amount":5}`, `{"Amount":3,"amount":5,"note":2,"TO":1,"to":4}`},
		{"a prefix sorts first", `{"ab":1,"a":2,"a\n":3}`, `{"a":2,"a\n":3,"ab":1}`},
		{"names beyond the BMP sort by code point", `{"\ud83d\ude00":1,"\uffee":2}`, `{"` + "\uffee" + `":2,"😀":1}`},
		{"numbers keep their text", `[1.0,1,1e0,1E0,-0,0,0.10,1e+5]`, `[1.0,1,1e0,1E0,-0,0,0.10,1e+5]`},
		{"twentieth digit", `12345678901234567891`, `12345678901234567891`},
		{"longest number", digits, digits},
		{"largest exponent", `1e-999`, `1e-999`},
		{"literals", `[true,false,null]`, `[true,false,null]`},
		{"deepest nesting", deep, deep},
		{"unicode line separator", "\"\u2028\"", "\"\u2028\""},
		{"non-character", "\"\uffff\"", "\"\uffff\""},
		{"replacement character, written out", "\"\ufffd\"", "\"\ufffd\""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := canonicalJSON([]byte("dst:"), []byte(tt.body))
			if err != nil || string(got) != "dst:"+tt.want {
				t.Errorf("canonicalJSON(%q) = %q, %v, want %q", tt.body, got, err, "dst:"+tt.want)
			}
		})
	}
}

func TestCanonicalJSONRefuses(t *testing.T) {
	tests := []struct{ name, body, says string }{
		{"empty", "", "malformed"},
		{"only space", " \n", "malformed"},
		{"trailing data", `{} {}`, "malformed"},
		{"trailing NUL", "{}\x00", "malformed"},
		{"byte order mark", "\xef\xbb\xbf{}", "malformed"},
		{"invalid UTF-8", "\"\xff\"", "invalid UTF-8"},
		{"overlong UTF-8", "\"\xc0\x80\"", "invalid UTF-8"},
		{"surrogate in UTF-8", "\"\xed\xa0\x80\"", "invalid UTF-8"},
		{"truncated UTF-8", "\"\xe2\x82\"", "invalid UTF-8"},
		{"high surrogate alone", `"\ud83d"`, "surrogate"},
		{"high surrogate twice", `"\ud83d\ud83d"`, "surrogate"},
		{"high surrogate and text", `"\ud83dabcdef"`, "surrogate"},
		{"low surrogate alone", `"\ude00"`, "surrogate"},
		{"surrogate in a name", `{"\ud83d":1}`, "surrogate"},
		{"high surrogate at the end", `"\ud83d"`, "surrogate"},
		{"high surrogate cut off", `"\ud83d`, "malformed"},
		{"duplicate member", `{"amount":1,"amount":2}`, "two members"},
		{"duplicate member, equal", `{"a":1,"a":1}`, "two members"},
		{"duplicate member, not adjacent", `{"a":1,"b":2,"a":3}`, "two members"},
		{"duplicate member after unescaping", `{"a":1,"\u0061":2}`, "two members"},
		{"duplicate member, nested", `[{"x":{"a\/":1,"b":0,"a/":2}}]`, "two members"},
		{"duplicate member among names that differ in case", `{"A":1,"a":2,"A":3}`, "two members"},
		{"duplicate empty name", `{"":1,"":2}`, "two members"},
		{"too deep", strings.Repeat("[", maxJSONDepth+1) + strings.Repeat("]", maxJSONDepth+1), "nested too deeply"},
		{"too deep, objects", strings.Repeat(`{"a":`, maxJSONDepth+1) + "1" + strings.Repeat("}", maxJSONDepth+1), "nested too deeply"},
		{"far too deep", strings.Repeat("[", 1<<20) + strings.Repeat("]", 1<<20), "malformed"},
		{"number too long", strings.Repeat("7", maxJSONNumber+1), "too long"},
		{"fraction too long", "0." + strings.Repeat("7", maxJSONNumber), "too long"},
		{"exponent too large", "1e1000", "exponent"},
		{"exponent with zeros", "1e0001", "exponent"},
		{"leading zero", "01", "malformed"},
		{"minus alone", "-", "malformed"},
		{"plus", "+1", "malformed"},
		{"point first", ".5", "malformed"},
		{"point last", "1.", "malformed"},
		{"exponent without digits", "1e+", "malformed"},
		{"NaN", "NaN", "malformed"},
		{"Infinity", "-Infinity", "malformed"},
		{"hexadecimal", "0x10", "malformed"},
		{"control character", "\"a\nb\"", "malformed"},
		{"NUL in a string", "\"a\x00b\"", "malformed"},
		{"NUL as a value", "[\x00]", "malformed"},
		{"unknown escape", `"\x41"`, "malformed"},
		{"escape cut off", `"\`, "malformed"},
		{"u escape cut off", `"\u00`, "malformed"},
		{"u escape with a sign", `"\u+041"`, "malformed"},
		{"string cut off", `"abc`, "malformed"},
		{"single quotes", `'a'`, "malformed"},
		{"comment", `/* */1`, "malformed"},
		{"trailing comma", `[1,]`, "malformed"},
		{"trailing comma in an object", `{"a":1,}`, "malformed"},
		{"missing comma", `[1 2]`, "malformed"},
		{"missing comma in an object", `{"a":1 "b":2}`, "malformed"},
		{"missing colon", `{"a" 1}`, "malformed"},
		{"name without quotes", `{a:1}`, "malformed"},
		{"wrong bracket", `[1}`, "malformed"},
		{"object cut off", `{"a":1`, "malformed"},
		{"literal cut off", `tru`, "malformed"},
		{"literal in capitals", `True`, "malformed"},
		{"other space", "\u00a01", "malformed"},
		{"vertical tab", "\v1", "malformed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := canonicalJSON([]byte("dst:"), []byte(tt.body))
			if err == nil || string(got) != "dst:" {
				t.Fatalf("canonicalJSON(%.40q) = %q, %v, want an error and dst unchanged", tt.body, got, err)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("canonicalJSON(%.40q): error %q does not say %q", tt.body, err, tt.says)
			}
		})
	}
}

// Two bodies that encoding/json reads as two values have two forms.
func TestCanonicalJSONTellsApartWhatDecodersReadDifferently(t *testing.T) {
	for _, bodies := range [][2]string{
		{`{"amount":1,"Amount":2}`, `{"Amount":2,"amount":1}`},
		{`{"amount":1,"to":"bob","AMOUNT":2}`, `{"AMOUNT":2,"to":"bob","amount":1}`},
		{`{"amount":1,"\u0041mount":2}`, `{"\u0041mount":2,"amount":1}`},
		{`{"task":1,"tas\u212a":2}`, `{"tas\u212a":2,"task":1}`}, // the Kelvin sign
		{`{"\u017fum":1,"Sum":2}`, `{"Sum":2,"\u017fum":1}`},     // the long s
		{`{"nested":{"amount":1,"Amount":2}}`, `{"nested":{"Amount":2,"amount":1}}`},
		{`{"nested":{"amount":1},"Nested":{"amount":2}}`, `{"Nested":{"amount":2},"nested":{"amount":1}}`},
		{`{"list":[{"amount":1,"Amount":2}]}`, `{"list":[{"Amount":2,"amount":1}]}`},
	} {
		var read [2]struct {
			Amount, Task, Sum int
			Nested            struct{ Amount int }
			List              []struct{ Amount int }
		}
		var forms [2][]byte
		for i, body := range bodies {
			if err := json.Unmarshal([]byte(body), &read[i]); err != nil {
				t.Fatalf("Unmarshal(%s) = %v", body, err)
			}
			var err error
			if forms[i], err = canonicalJSON(nil, []byte(body)); err != nil {
				t.Fatalf("canonicalJSON(%s) = %v", body, err)
			}
		}
		if fmt.Sprint(read[0]) == fmt.Sprint(read[1]) {
			t.Errorf("encoding/json reads %s and %s alike: the test compares nothing", bodies[0], bodies[1])
		}
		if bytes.Equal(forms[0], forms[1]) {
			t.Errorf("%s and %s have one form, %s", bodies[0], bodies[1], forms[0])
		}
	}
}

// fold joins at least what any decoder joins.
func TestFoldJoinsWhatDecodersJoin(t *testing.T) {
	for r := rune(0); r <= utf8.MaxRune; r++ {
		for _, same := range []rune{unicode.SimpleFold(r), unicode.ToLower(r), unicode.ToUpper(r), unicode.ToTitle(r)} {
			if same != r && fold(r) != fold(same) {
				t.Fatalf("fold(%U) = %U, and fold(%U) = %U", r, fold(r), same, fold(same))
			}
		}
	}
}

const paymentJSON = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"caf\u00e9 & more","meta":{"order":"A-1","lines":[{"sku":"x","n":2},{"sku":"y","n":1}]}}`

func FuzzCanonicalJSON(f *testing.F) {
	for _, s := range []string{
		paymentJSON, `{"b":1,"a":{"d":[],"c":"\u0041"}}`, `[1.0,1,1e0,-0]`, `{"a":1,"\u0061":2}`, `"\ud83d\ude00"`, `"\ud83d"`,
		"\"\xff\"", `{"\\":1,"\"":2,"\n":3}`, "[\x00]", "1 ", ` { } `, `12345678901234567890.12345678901234567890e-999`,
		strings.Repeat("[", 130), `{"":{"":{"":[]}}}`, `{"a` + "\u2028" + `":true}`, "\xef\xbb\xbf1", "[1,2", `{"a":1,"b":2}`,
	} {
		f.Add([]byte(s), []byte(`{"b": 2, "a": 1}`))
		f.Add([]byte(s), []byte(s))
	}
	f.Fuzz(func(t *testing.T, a, b []byte) {
		ca, err := canonicalJSON(nil, a)
		if err != nil {
			return
		}
		if len(ca) > len(a) {
			t.Fatalf("canonicalJSON(%q) = %q, longer than the body", a, ca)
		}
		again, err := canonicalJSON(nil, ca)
		if err != nil || !bytes.Equal(again, ca) {
			t.Fatalf("canonicalJSON(%q) = %q, %v, want it unchanged", ca, again, err)
		}
		va, ok := decodeJSON(a)
		if !ok {
			t.Fatalf("canonicalJSON accepts %q and encoding/json does not", a)
		}
		if v, ok := decodeJSON(ca); !ok || !reflect.DeepEqual(v, va) {
			t.Fatalf("%q stands for %v, its canonical form %q for %v", a, va, ca, v)
		}
		// encoding/json sorts members and spaces them in its own way.
		alike := namesAlike(va)
		if indented, err := json.MarshalIndent(va, " ", "\t"); err == nil && !alike {
			if got, err := canonicalJSON(nil, indented); err != nil || !bytes.Equal(got, ca) {
				t.Fatalf("canonicalJSON(%q) = %q, %v, want %q", indented, got, err, ca)
			}
		}
		cb, err := canonicalJSON(nil, b)
		if err != nil {
			return
		}
		vb, _ := decodeJSON(b)
		if alike && !bytes.Equal(ca, cb) {
			return // the order of their members may tell them apart
		}
		if reflect.DeepEqual(va, vb) != bytes.Equal(ca, cb) {
			t.Fatalf("%q and %q: equal values %v, equal forms %v", a, b, reflect.DeepEqual(va, vb), bytes.Equal(ca, cb))
		}
	})
}

// namesAlike reports whether an object in v has two names that a decoder may take
// for one.
func namesAlike(v any) bool {
	switch v := v.(type) {
	case []any:
		return slices.ContainsFunc(v, namesAlike)
	case map[string]any:
		seen := map[string]bool{}
		for name, value := range v {
			folded := strings.Map(fold, name)
			if seen[folded] || namesAlike(value) {
				return true
			}
			seen[folded] = true
		}
	}
	return false
}

func decodeJSON(b []byte) (any, bool) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	return v, d.Decode(&v) == nil && !d.More()
}

func BenchmarkCanonicalJSON(b *testing.B) {
	for _, bm := range []struct{ name, body string }{
		{"payment", paymentJSON},
		{"64KiB", `{"rows":[` + strings.Repeat(paymentJSON+",", 400) + `null]}`},
	} {
		b.Run(bm.name, func(b *testing.B) {
			body := []byte(bm.body)
			dst := make([]byte, 0, len(body))
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := canonicalJSON(dst, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
