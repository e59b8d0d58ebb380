package redislock

import "testing"

// Another program may write anything under the key of a lock.
func FuzzParseHolder(f *testing.F) {
	f.Add("a b c 00112233445566778899aabbccddeeff 7@host")
	f.Add("   ")
	f.Add("1 2 3 4 99999999999999999999@%zz")
	f.Fuzz(func(t *testing.T, value string) {
		if h := parseHolder(value); len(h.Host) > len(value) {
			t.Errorf("parseHolder(%q) = %+v", value, h)
		}
	})
}
