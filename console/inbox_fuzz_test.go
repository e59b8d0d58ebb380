package console

import (
	"net/url"
	"testing"
)

// A link to the console comes from anywhere. Its query is read, and written in links again.
func FuzzParseQuery(f *testing.F) {
	f.Add("view=all&state=unknown&older=1m&route=POST+/pay&after=1-" + "00000000000000000000000000000000000000000000000000000000000000aa")
	f.Add("older=-1s&after=x")
	f.Add("from=2026-05-01T10:00&until=2026-05-02&kept=success")
	f.Add("from=2026-05-01T10:00:01&until=2026-05-02T00:00:00%2b02:00&kept=x")
	f.Fuzz(func(t *testing.T, raw string) {
		v, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		q := parseQuery(v)
		again, err := url.ParseQuery(q.link(q.after)[1:])
		if err != nil {
			t.Fatal(err)
		}
		p := parseQuery(again)
		if (p.after == nil) != (q.after == nil) || p.after != nil && *p.after != *q.after {
			t.Fatalf("%q: cursor %v became %v", raw, q.after, p.after)
		}
		if p.after, q.after = nil, nil; p != q {
			t.Errorf("%q: %+v became %+v", raw, q, p)
		}
	})
}
