package server_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// The timeline of a key tells of what was and of what comes, to its owner only.
func TestTimelineIsLive(t *testing.T) {
	timeline := server.NewTimeline()
	c := newBench(t).instance(t, func(cfg *server.Config) { cfg.Timeline = timeline })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	read := func(token string) *bufio.Scanner {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+"/v1/timeline", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Idempotency-Key", "k")
		res, err := http.DefaultClient.Do(req)
		if err != nil || res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || len(res.TransferEncoding) > 0 {
			t.Fatalf("GET /v1/timeline = %+v, %v", res, err)
		}
		t.Cleanup(func() { res.Body.Close() })
		return bufio.NewScanner(res.Body)
	}
	want := func(lines *bufio.Scanner, part string) {
		t.Helper()
		for lines.Scan() {
			if strings.Contains(lines.Text(), part) {
				return
			}
		}
		t.Fatalf("the timeline ended without %q: %v", part, lines.Err())
	}
	mine, other := read("demo"), read("test")
	c.pay("k", order).wantAnswer(t, "first", 201, "")
	want(mine, `"step":"received"`)
	timeline.Observe(t.Context(), telemetry.Event{Type: telemetry.EventReplayed, KeyID: idem.NewKeyID("merchant_demo", "k")})
	want(mine, `"step":"replay"`)
	want(read("demo"), `"step":"received"`) // a page that comes later
	if a := c.do("GET", "/v1/timeline", ""); a.status != 400 {
		t.Errorf("GET /v1/timeline without a key = %d, want 400", a.status)
	}
	for range 14 { // two are open
		read("demo")
	}
	if a := c.do("GET", "/v1/timeline", "", "Idempotency-Key", "k"); a.status != 429 || a.code() != "too-many-streams" || a.header.Get("Retry-After") == "" {
		t.Errorf("GET /v1/timeline, too often = %d %s, want 429 too-many-streams", a.status, a.body)
	}
	timeline.Close() // as at a shutdown
	for other.Scan() {
		if strings.HasPrefix(other.Text(), "data:") {
			t.Errorf("another merchant sees %s", other.Text())
		}
	}
}

func TestPageHasNoInlineCode(t *testing.T) {
	_, c := setup(t)
	for path, part := range map[string]string{"/": "pays once", "/docs/idempotency": "24 hours", "/assets/page.js": "newOrder", "/assets/page.css": ":root", "/assets/icon.svg": "<svg"} {
		a := c.do("GET", path, "")
		if a.status != 200 || !strings.Contains(a.body, part) || strings.Contains(a.body, "<style") || strings.Contains(a.body, "onclick") ||
			strings.Contains(a.header.Get("Content-Security-Policy"), "unsafe") || !strings.Contains(a.header.Get("Content-Security-Policy"), "default-src 'none'") {
			t.Errorf("GET %s = %d %v\n%s", path, a.status, a.header, a.body)
		}
	}
}

// The page names its button by what it does, and links only to a console that is there.
func TestPageTellsWhatItsButtonDoes(t *testing.T) {
	_, plain := setup(t)
	crashing := newBench(t).instance(t, func(cfg *server.Config) {
		cfg.Service.Crash = func() {}
		cfg.Console = http.NotFoundHandler()
	})
	for c, want := range map[*client]map[string]bool{plain: {"Fail mid-charge": true}, crashing: {"Crash mid-charge": true, `href="/console/"`: true, "Connection: close": true}} {
		page := c.do("GET", "/", "").body
		for _, part := range []string{"Fail mid-charge", "Crash mid-charge", `href="/console/"`, "Connection: close"} {
			if strings.Contains(page, part) != want[part] {
				t.Errorf("%q on the page: %t, want %t", part, !want[part], want[part])
			}
		}
	}
}

// A charge that is made to fail in its middle is made once.
func TestChargeThatBreaksOff(t *testing.T) {
	_, c := setup(t)
	c.do("POST", "/v1/payments", order, "Idempotency-Key", "k", "Demo-Crash", "yes")
	c.pay("k", order).wantAnswer(t, "again", 201, "")
	if n := c.payments(); n != 1 {
		t.Errorf("%d payments, want one", n)
	}
}
