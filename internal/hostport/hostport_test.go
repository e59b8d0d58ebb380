package hostport

import (
	"net/url"
	"testing"
)

func TestOfURL(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		url        string
		host, port string // empty if it is refused
	}{
		{"x://h", "h", "1000"},
		{"x://h:2", "h", "2"},
		{"x://[::1]:2", "::1", "2"},
		{"x://[fe80::1%25eth0]", "fe80::1%eth0", "1000"},
		{"x://zk_1.über:65535", "zk_1.über", "65535"},
		{"x://u:p@10.0.0.1/db", "10.0.0.1", "1000"},
		{"x://", "", ""},
		{"x://:2", "", ""},
		{"x://h:", "", ""},
		{"x://h:0", "", ""},
		{"x://h:65536", "", ""},
		{"x://a,b:2", "", ""},
		{"x://a:1,b:2", "", ""},
		{"x://::1:2", "", ""},
		{"x://[a:1]:2", "", ""},
		{"x://a;b", "", ""},
		{"x://a%20b", "", ""},
	} {
		u, err := url.Parse(tt.url)
		if err != nil {
			if tt.host != "" {
				t.Errorf("url.Parse(%q) = %v", tt.url, err)
			}
			continue // refused by package url
		}
		host, port, err := OfURL(u, "1000")
		if (err != nil) != (tt.host == "") || err == nil && (host != tt.host || port != tt.port) {
			t.Errorf("OfURL(%q) = %q, %q, %v, want %q, %q", tt.url, host, port, err, tt.host, tt.port)
		}
	}
}
