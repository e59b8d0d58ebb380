package sealed

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// secretOf is a key's secret that no other ID has.
func secretOf(id string) []byte {
	return bytes.Repeat([]byte(id+"?"), KeySize)[:KeySize]
}

// ringOf returns a ring of keys with these IDs, the primary first.
func ringOf(tb testing.TB, ids ...string) *Ring { tb.Helper(); return ringFrom(tb, ringText(ids...)) }

func ringFrom(tb testing.TB, list string) *Ring {
	tb.Helper()
	r, err := ParseRing(list)
	if err != nil {
		tb.Fatalf("ParseRing() = %v, want a ring", err)
	}
	return r
}

// text is the secret of an ID as a list of keys has it.
func text(id string) string { return base64.StdEncoding.EncodeToString(secretOf(id)) }

func ringText(ids ...string) string {
	pairs := make([]string, len(ids))
	for i, id := range ids {
		pairs[i] = id + "=" + text(id)
	}
	return strings.Join(pairs, ",")
}

func TestParseRing(t *testing.T) {
	if got := ringOf(t, "k2", "k1").IDs(); !slices.Equal(got, []string{"k2", "k1"}) {
		t.Errorf("IDs() = %q, want k2 first", got)
	}
	if r, err := ParseRing(" " + strings.Replace(ringText("k2", "k1"), ",", " ,\n", 1) + "\n"); err != nil || len(r.IDs()) != 2 {
		t.Errorf("ParseRing of a list with spaces = %v, %v, want two keys", r, err)
	}
	good := text("good")
	for name, tt := range map[string]struct {
		list     string
		position int
	}{
		"nothing":            {"", 1},
		"no ID":              {"=" + good, 1},
		"no secret":          {"k1=", 1},
		"a secret alone":     {good, 1},
		"base64 with dashes": {"k1=" + base64.URLEncoding.EncodeToString(bytes.Repeat([]byte{0xff}, KeySize)), 1},
		"31 bytes":           {"k1=" + base64.StdEncoding.EncodeToString(secretOf("k1")[:31]), 1},
		"33 bytes":           {"k1=" + base64.StdEncoding.EncodeToString(append(secretOf("k1"), 0)), 1},
		"trailing bits":      {"k1=" + strings.Replace(good, good[42:43]+"=", "/=", 1), 1},
		"an empty pair":      {ringText("k1") + ",", 2},
		"an ID twice":        {ringText("k1", "k1"), 2},
		"an ID of 33 bytes":  {strings.Repeat("k", 33) + "=" + good, 1},
		"an ID with a space": {"k 1=" + good, 1},
		"an ID with UTF-8":   {"ü=" + good, 1},
		"an ID with a NUL":   {"k\x00=" + good, 1},
		"a fault behind":     {ringText("k1", "k2") + ",k3=" + good + "!", 3},
	} {
		r, err := ParseRing(tt.list)
		if err == nil {
			t.Errorf("ParseRing of %s = %v, want an error", name, r)
			continue
		}
		if want := fmt.Sprintf("ring: key %d", tt.position); !strings.Contains(err.Error(), want) {
			t.Errorf("ParseRing of %s = %v, want %q in it", name, err, want)
		}
		for _, part := range strings.FieldsFunc(tt.list, func(r rune) bool { return r == ',' || r == '=' || r == '\n' }) {
			if len(part) > 8 && strings.Contains(err.Error(), part) {
				t.Errorf("ParseRing of %s = %v, which shows %q", name, err, part)
			}
		}
	}
	if r, err := ParseRing(strings.Repeat("~", 32) + "=" + good); err != nil {
		t.Errorf("ParseRing of the longest ID = %v, %v, want a ring", r, err)
	}
}

func TestNewRingAndNewKeyRefuse(t *testing.T) {
	k, err := NewKey("k1", secretOf("k1"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewRing(Key{}); err == nil {
		t.Error("NewRing(zero key) = <nil>, want an error")
	}
	if _, err := NewRing(k, Key{}); err == nil {
		t.Error("NewRing(k1, zero key) = <nil>, want an error")
	}
	if _, err := NewRing(k, k); err == nil {
		t.Error("NewRing(k1, k1) = <nil>, want an error")
	}
	for _, n := range []int{0, 16, 24, 31, 33} { // 16 and 24 would be shorter AES
		if _, err := NewKey("k1", make([]byte, n)); err == nil {
			t.Errorf("NewKey with a secret of %d bytes = <nil>, want an error", n)
		}
	}
	for _, id := range []string{"", "k 1", "k,1", "k=1", "k\x7f", "ü", strings.Repeat("k", maxKeyID+1)} {
		if _, err := NewKey(id, secretOf("k1")); err == nil {
			t.Errorf("NewKey(%q) = <nil>, want an error", id)
		}
	}
}

// Printing a ring or a key never shows a secret.
func TestSecretsAreNotPrinted(t *testing.T) {
	ring := ringOf(t, "k2", "k1")
	key := ring.keys[0]
	var out bytes.Buffer
	type holder struct {
		R  Ring
		P  *Ring
		K  Key
		Ks []Key
	}
	for _, v := range []any{ring, *ring, key, &key, ring.keys, holder{*ring, ring, key, ring.keys}, &holder{*ring, ring, key, ring.keys}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%c", "%U", "%b", "% x", "%p"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		text := slog.New(slog.NewTextHandler(&out, nil))
		text.Info("text", "v", v)
		slog.New(slog.NewJSONHandler(&out, nil)).Info("json", "v", v)
		b, err := json.Marshal(v)
		if err != nil {
			t.Error(err)
		}
		out.Write(b)
	}
	printed := out.String()
	for _, id := range ring.IDs() {
		secret := secretOf(id)
		for _, form := range []string{
			string(secret), base64.StdEncoding.EncodeToString(secret)[:40], hex.EncodeToString(secret),
			fmt.Sprintf("%d %d %d", secret[0], secret[1], secret[2]), fmt.Sprintf("%#x, %#x, %#x", secret[0], secret[1], secret[2]),
		} {
			if i := strings.Index(printed, form); i >= 0 {
				t.Errorf("the secret of %s is printed: %q", id, printed[max(0, i-80):i])
			}
		}
	}
	if got := fmt.Sprintf("%v %#v %s", ring, *ring, key); got != "ring[k2 k1] ring[k2 k1] k2" {
		t.Errorf("printed = %q, want the IDs", got)
	}
	if got := slog.AnyValue(ring).Resolve().String() + slog.AnyValue(key).Resolve().String(); got != "ring[k2 k1]k2" {
		t.Errorf("LogValue() = %q, want the IDs", got)
	}
}
