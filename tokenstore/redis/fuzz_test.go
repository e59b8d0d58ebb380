package redisstore

import (
	"strings"
	"testing"
)

// Another program may write anything under the store's keys.

func FuzzParseReply(f *testing.F) {
	f.Add("ok", "", "", "")
	f.Add(verdictUnreadable, "\x02", "", "12345678")
	f.Add("ok", strings.Repeat("\x01", 200), "\x01\x00", "12345678")
	f.Fuzz(func(t *testing.T, verdict, record, response, now string) {
		r, err := parseReply("Get", []string{verdict, record, response, now})
		if err == nil && r.verdict != verdict {
			t.Errorf("parseReply(%q) = %+v", verdict, r)
		}
		if err != nil && len(record) > 8 && strings.Contains(err.Error(), record) {
			t.Errorf("the error shows the record: %v", err)
		}
		_, _ = parseReply("Get", []string{verdict})
	})
}

func FuzzDecodeDecided(f *testing.F) {
	f.Add("")
	f.Add("\x01\x03" + strings.Repeat("\x00", 26) + strings.Repeat("a", 64) + "\x03adabecause")
	f.Add("\x02" + strings.Repeat("\x00", 100))
	f.Fuzz(func(t *testing.T, e string) {
		id, d, err := decodeDecided(e)
		if err == nil && (len(d.By)+len(d.Reason) != len(e)-decidedHeader || !strings.HasSuffix(e, d.By+d.Reason)) {
			t.Errorf("decodeDecided(%q) = %v, %+v", e, id, d)
		}
	})
}

func FuzzParseAddr(f *testing.F) {
	for _, addr := range []string{"redis://h", "rediss://u:p%40@h:1/3", "redis://h:1,redis://i:2", "rediss+sentinel://u:p@a:1,b/m/4", "redis://[::1]:7"} {
		f.Add(addr)
	}
	f.Fuzz(func(t *testing.T, addr string) {
		o, err := parseAddr(addr)
		if err == nil && len(o.Addrs) == 0 {
			t.Errorf("parseAddr(%q) names no server", addr)
		}
		if err == nil && o.TLSConfig == nil && strings.HasPrefix(addr, "rediss") {
			t.Errorf("parseAddr(%q) drops TLS", addr)
		}
	})
}
