package payments_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
)

func TestParseOrder(t *testing.T) {
	const good = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"n"}`
	with := func(part, instead string) string { return strings.Replace(good, part, instead, 1) }
	tests := []struct {
		name, body string
		wantErr    string // part of the detail; "": accepted
	}{
		{"as documented", good, ""},
		{"white space around", "\r\n " + good + "\t\n", ""},
		{"no note", `{"from":"alice","to":"bob","amount":1250,"currency":"USD"}`, ""},
		{"the greatest amount", with("1250", "9000000000000000"), ""},
		{"a note of 500 bytes", with(`"n"`, `"`+strings.Repeat("é", 250)+`"`), ""},
		{"an escaped pair of surrogates", with(`"n"`, `"\ud83d\ude00"`), ""},
		{"an escaped backslash before u", with(`"n"`, `"\\ud800"`), ""},
		{"a line break in the note", with(`"n"`, `"a\nb"`), ""},

		{"empty", "", "not one JSON object"},
		{"an array", "[" + good + "]", "not one JSON object"},
		{"a string", `"x"`, "not one JSON object"},
		{"null", `null`, "not one JSON object"},
		{"cut off", good[:len(good)-1], "not one JSON object"},
		{"trailing comma", with(`"n"}`, `"n",}`), "not one JSON object"},
		{"something behind", good + "{}", "not one JSON object"},
		{"a byte order mark", "\ufeff" + good, "not one JSON object"},
		{"a comment", good + "// x", "not one JSON object"},
		{"invalid UTF-8", with(`"n"`, "\"\xff\""), "Unicode"},
		{"half a surrogate pair", with(`"n"`, `"\ud800"`), "Unicode"},
		{"the other half", with(`"n"`, `"\udc00x"`), "Unicode"},
		{"two first halves", with(`"n"`, `"\ud800\ud800"`), "Unicode"},
		{"a member twice", with(`"note":"n"`, `"amount":1`), "twice"},
		{"a member twice, once escaped", with(`"note":"n"`, `"\u0061mount":1`), "twice"},
		{"another case", with(`"amount"`, `"Amount"`), `"Amount" is not known`},
		{"an unknown member", with(`"note"`, `"memo"`), `"memo" is not known`},
		{"a nested value", with(`"n"`, `{}`), "nested"},
		{"no amount", with(`"amount":1250,`, ``), "amount is missing"},
		{"no currency", with(`"currency":"USD",`, ``), "currency is missing"},
		{"no from", with(`"from":"alice",`, ``), "from is missing"},
		{"amount as a string", with("1250", `"1250"`), "not a number"},
		{"amount null", with("1250", `null`), "not a number"},
		{"a fraction", with("1250", "12.50"), "not an integer"},
		{"a fraction of nothing", with("1250", "1250.0"), "not an integer"},
		{"an exponent", with("1250", "1e3"), "not an integer"},
		{"over 64 bits", with("1250", "18446744073709551617"), "not an integer"},
		{"nothing", with("1250", "0"), "not within"},
		{"minus nothing", with("1250", "-0"), "not within"},
		{"less than nothing", with("1250", "-1"), "not within"},
		{"too much", with("1250", "9000000000000001"), "not within"},
		{"to oneself", with("bob", "alice"), "same account"},
		{"an empty account", with("bob", ""), "to is not"},
		{"a long account", with("bob", strings.Repeat("b", 65)), "to is not"},
		{"a control character in an account", with("bob", `b\u0000b`), "not allowed"},
		{"account as a number", with(`"bob"`, "7"), "to is not a string"},
		{"currency in small letters", with("USD", "usd"), "capital"},
		{"currency of four letters", with("USD", "USDT"), "capital"},
		{"currency not of letters", with("USD", "US1"), "capital"},
		{"a note of 501 bytes", with(`"n"`, `"`+strings.Repeat("n", 501)+`"`), "note is longer"},
		{"a NUL in the note", with(`"n"`, `"\u0000"`), "NUL"},
		{"note null", with(`"n"`, `null`), "note is not a string"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := payments.ParseOrder([]byte(tt.body))
			if tt.wantErr == "" {
				if err != nil {
					t.Errorf("ParseOrder(%q) = %v, want nil", tt.body, err)
				}
				return
			}
			var e *payments.Error
			if !errors.As(err, &e) || e.Code != payments.CodeBodyInvalid || !strings.Contains(e.Detail, tt.wantErr) {
				t.Errorf("ParseOrder(%q) = %v, want body-invalid with %q", tt.body, err, tt.wantErr)
			}
		})
	}
}

func FuzzParseOrder(f *testing.F) {
	f.Add([]byte(`{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"\ud83d\ude00"}`))
	f.Add([]byte(`{"from":"a","to":"b","amount":1,"currency":"USD","note":"\`))
	f.Fuzz(func(t *testing.T, body []byte) {
		o, err := payments.ParseOrder(body)
		if err != nil {
			return
		}
		again, _ := json.Marshal(o)
		if got, err := payments.ParseOrder(again); err != nil || got != o {
			t.Errorf("ParseOrder(%q) = %+v, and written again %+v, %v", body, o, got, err)
		}
	})
}

func TestPaymentIsWrittenTheSameWhenReadBack(t *testing.T) {
	p := payments.NewPayment("op_1", payments.Order{From: "alice", To: "bob", Amount: 1, Currency: "USD", Note: "<é>"},
		time.Date(2026, 1, 2, 3, 4, 5, 600_000_789, time.FixedZone("", 3600)))
	back := p
	back.CreatedAt = time.UnixMicro(p.CreatedAt.UnixMicro())
	a, errA := json.Marshal(p)
	b, errB := json.Marshal(back)
	if errA != nil || errB != nil || string(a) != string(b) {
		t.Errorf("read back: %s %v, want %s %v", b, errB, a, errA)
	}
	if want := `"created_at":"2026-01-02T02:04:05.600000Z"}`; !strings.HasSuffix(string(a), want) || strings.Contains(string(a), "op_1") {
		t.Errorf("JSON is %s, want it to end in %s and not to show the operation ID", a, want)
	}
}
