package idem

import (
	"errors"
	"strings"
	"testing"
)

func TestParseKey(t *testing.T) {
	long := strings.Repeat("k", MaxKeyBytes)
	tests := []struct {
		name   string
		values []string
		want   Key
		code   Code // "" where the key is accepted
		says   string
	}{
		{"bare", []string{"8e03978e-40d5"}, "8e03978e-40d5", "", ""},
		{"quoted", []string{`"8e03978e-40d5"`}, "8e03978e-40d5", "", ""},
		{"space around", []string{" \tabc\t "}, "abc", "", ""},
		{"space around quotes", []string{`  "abc" `}, "abc", "", ""},
		{"space inside quotes", []string{`" a b "`}, " a b ", "", ""},
		{"comma inside quotes", []string{`"a, b"`}, "a, b", "", ""},
		{"escaped quote and backslash", []string{`"a\"b\\c"`}, `a"b\c`, "", ""},
		{"escaped backslash last", []string{`"a\\"`}, `a\`, "", ""},
		{"a tilde", []string{"~!#"}, "~!#", "", ""},
		{"a tilde inside quotes", []string{`"~"`}, "~", "", ""},
		{"longest bare", []string{long}, Key(long), "", ""},
		{"longest quoted", []string{`"` + long + `"`}, Key(long), "", ""},
		{"longest escaped", []string{`"` + strings.Repeat(`\\`, MaxKeyBytes) + `"`}, Key(strings.Repeat(`\`, MaxKeyBytes)), "", ""},

		{"none", nil, "", CodeKeyMissing, "no key"},
		{"no lines", []string{}, "", CodeKeyMissing, "no key"},
		{"empty line", []string{""}, "", CodeKeyInvalid, "empty"},
		{"only space", []string{" \t"}, "", CodeKeyInvalid, "empty"},
		{"empty string", []string{`""`}, "", CodeKeyInvalid, "empty"},
		{"two lines", []string{"a", "a"}, "", CodeKeyInvalid, "2 keys"},
		{"joined by a proxy", []string{"a,b"}, "", CodeKeyInvalid, "comma"},
		{"quoted and joined", []string{`"a", "b"`}, "", CodeKeyInvalid, "more follows"},
		{"space inside bare", []string{"a b"}, "", CodeKeyInvalid, "visible ASCII"},
		{"quote inside bare", []string{`a"b`}, "", CodeKeyInvalid, "quote"},
		{"backslash inside bare", []string{`a\b`}, "", CodeKeyInvalid, "backslash"},
		{"parameters", []string{`"a";v=1`}, "", CodeKeyInvalid, "more follows"},
		{"no closing quote", []string{`"a`}, "", CodeKeyInvalid, "closing quote"},
		{"a quote alone", []string{`"`}, "", CodeKeyInvalid, "closing quote"},
		{"escaped closing quote", []string{`"a\"`}, "", CodeKeyInvalid, "closing quote"},
		{"unknown escape", []string{`"\n"`}, "", CodeKeyInvalid, "escape"},
		{"escape at the end", []string{`"a\`}, "", CodeKeyInvalid, "escape"},
		{"control character", []string{"a\x00"}, "", CodeKeyInvalid, "visible ASCII"},
		{"tab in quotes", []string{"\"a\tb\""}, "", CodeKeyInvalid, "printable ASCII"},
		{"delete", []string{"\"a\x7f\""}, "", CodeKeyInvalid, "printable ASCII"},
		{"not ASCII", []string{"schlüssel"}, "", CodeKeyInvalid, "visible ASCII"},
		{"not ASCII, escaped", []string{`"\\é"`}, "", CodeKeyInvalid, "printable ASCII"},
		{"too long bare", []string{long + "k"}, "", CodeKeyInvalid, "256 bytes"},
		{"too long quoted", []string{`"` + long + `k"`}, "", CodeKeyInvalid, "256 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseKey(tt.values)
			var r *Refusal
			errors.As(err, &r)
			switch {
			case tt.code == "":
				if err != nil || got != tt.want {
					t.Fatalf("ParseKey(%q) = %q, %v, want %q", tt.values, got, err, tt.want)
				}
			case r == nil || r.Code != tt.code || got != "":
				t.Fatalf("ParseKey(%q) = %q, %v, want a refusal with code %q", tt.values, got, err, tt.code)
			case r.RetryAfter != 0:
				t.Errorf("ParseKey(%q): RetryAfter = %v, want 0", tt.values, r.RetryAfter)
			case !strings.Contains(r.Error(), tt.says):
				t.Errorf("ParseKey(%q): error %q does not say %q", tt.values, r, tt.says)
			}
		})
	}
}

func TestParseKeyErrorNeverHoldsTheKey(t *testing.T) {
	const secret = "s3cr3tk3y"
	for _, values := range [][]string{
		{secret, secret}, {secret + ","}, {`"` + secret}, {`"` + secret + `";a`}, {secret + " " + secret},
		{`"` + secret + `\x"`}, {strings.Repeat(secret, 50)}, {secret + "\x00"},
	} {
		_, err := ParseKey(values)
		if err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("ParseKey(%q) = %v, want an error without the key", values, err)
		}
	}
}

func FuzzParseKey(f *testing.F) {
	for _, s := range []string{
		"", "a", `"a"`, `"a\"b"`, `"a\\"`, `"a\`, "a,b", "a b", "\x00", `""`, `"`, " \t", `"a";q=1`, "é", "\xff",
		"8e03978e-40d5-43e8-bc93-6894a57f9324", strings.Repeat("x", 256), `"` + strings.Repeat(`\"`, 255) + `"`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := ParseKey([]string{s})
		if err != nil {
			var r *Refusal
			if !errors.As(err, &r) || r.Code != CodeKeyInvalid || key != "" {
				t.Fatalf("ParseKey(%q) = %q, %v, want a refusal as key-invalid", s, key, err)
			}
			return
		}
		if len(key) == 0 || len(key) > MaxKeyBytes {
			t.Fatalf("ParseKey(%q) = key of %d bytes", s, len(key))
		}
		bare := true
		for i := range len(key) {
			c := key[i]
			if c < ' ' || c > '~' {
				t.Fatalf("ParseKey(%q) holds byte %#x", s, c)
			}
			bare = bare && c != ' ' && c != ',' && c != '"' && c != '\\'
		}
		again, err := ParseKey([]string{key.Quoted()})
		if err != nil || again != key {
			t.Fatalf("ParseKey(%q) = %q, %v, want %q", key.Quoted(), again, err, key)
		}
		if bare {
			if again, err = ParseKey([]string{" " + string(key) + "\t"}); err != nil || again != key {
				t.Fatalf("ParseKey(%q) = %q, %v, want it unchanged", key, again, err)
			}
		}
	})
}
