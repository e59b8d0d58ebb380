package idem

import (
	"bytes"
	"encoding/json"
	"fmt"
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
