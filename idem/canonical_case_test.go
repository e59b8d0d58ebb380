package idem

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

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

func TestCanonicalJSONKeepsUnrelatedMembersOutOfTheOrder(t *testing.T) {
	want, err := canonicalJSON(nil, []byte(`{"to":"bob","amount":1,"note":"","Amount":2,"TO":"eve"}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{
		`{"amount":1,"Amount":2,"to":"bob","TO":"eve","note":""}`,
		`{"note":"","to":"bob","TO":"eve","amount":1,"Amount":2}`,
	} {
		if got, err := canonicalJSON(nil, []byte(body)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("canonicalJSON(%s) = %s, %v, want %s", body, got, err, want)
		}
	}
}

// fold joins at least what any decoder joins.
func TestFoldJoinsWhatDecodersJoin(t *testing.T) {
	for r := rune(0); r <= utf8.MaxRune; r++ {
		for _, same := range []rune{unicode.SimpleFold(r), unicode.ToLower(r), unicode.ToUpper(r), unicode.ToTitle(r)} {
			if fold(r) != fold(same) {
				t.Fatalf("fold(%U) = %U, and fold(%U) = %U", r, fold(r), same, fold(same))
			}
		}
	}
}

// The names of a hostile body may all be alike, and must not cost more than
// sorting them. Comparing each with each would take minutes here.
func TestCanonicalJSONOfManyNamesAlike(t *testing.T) {
	const names = 1 << 15
	var b strings.Builder
	b.WriteByte('{')
	for i := range names {
		if i > 0 {
			b.WriteByte(',')
		}
		name := []byte("abcdefghijklmno")
		for j := range name {
			if i>>j&1 == 1 {
				name[j] -= 'a' - 'A'
			}
		}
		fmt.Fprintf(&b, `"%s":%d`, name, i)
	}
	b.WriteByte('}')
	got, err := canonicalJSON(nil, []byte(b.String()))
	if err != nil || string(got) != b.String() {
		t.Errorf("canonicalJSON of %d names alike: %d bytes, %v, want it unchanged", names, len(got), err)
	}
}
