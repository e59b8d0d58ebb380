package console_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/sweeper"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	engine := newEngine(t, memorylock.New(), memorystore.New())
	for want, tt := range map[string]struct {
		engine    *idem.Engine
		authorise console.Authorise
		cfg       []console.Config
	}{
		"Authorise":          {engine, nil, nil},
		"engine":             {nil, authorise, nil},
		"at most one Config": {engine, authorise, []console.Config{{}, {}}},
		"TokenKey":           {engine, authorise, []console.Config{{TokenKey: []byte("short")}}},
		"no Look":            {engine, authorise, []console.Config{{Checks: []console.Check{{Name: "Bank"}}}}},
		"two policies":       {engine, authorise, []console.Config{{Policies: []idem.Policy{{}, {}}}}},
	} {
		if _, err := console.New(tt.engine, tt.authorise, tt.cfg...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() without a good %s = %v, want an error", want, err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("MustNew() with wrong wiring did not panic")
		}
	}()
	console.MustNew(engine, nil)
}

func TestNobodyElseIsServed(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	paths := []string{"", "health", "key/" + id("k").String(), "assets/console.css", "nowhere"}
	for _, path := range paths {
		got := r.as("").get(path)
		got.want(t, 401, "Sign in", "!"+id("k").OperationID(), "!payments")
		if got.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%s: no WWW-Authenticate", path)
		}
		r.as("mallory").get(path).want(t, 403, "You may not use this console", "!"+id("k").OperationID())
	}
	r.as("").do("POST", "key/"+id("k").String()+"/settle", url.Values{}).want(t, 401)
}

func TestReaderOnlyReads(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", &idem.Response{Status: 500, Body: []byte("card")})
	reader := r.as("reader")
	reader.storyOf("k").want(t, 200, "read-only", "You may read only", "!</code> to confirm", "!card")
	form := r.as("ada").storyOf("k").form()
	form.Set("token", reader.get("").form().Get("token"))
	form.Set("confirm", confirmation("k", "not-applied"))
	form.Set("reason", "because")
	form.Set("outcome", "not-applied")
	reader.do("POST", "key/"+id("k").String()+"/settle", form).want(t, 403, "Nothing was settled")
	if state := r.record("k").State; state != driver.StateUnknown {
		t.Errorf("the record is %v", state)
	}
}

func TestForgedFormsAreRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	ada := r.as("ada")
	path := "key/" + id("k").String() + "/settle"
	good := func() url.Values {
		v := ada.storyOf("k").form()
		v.Set("confirm", confirmation("k", "not-applied"))
		v.Set("reason", "because")
		v.Set("outcome", "not-applied")
		return v
	}
	ada.do("POST", path, good(), "Sec-Fetch-Site", "cross-site").want(t, 403, "does not come from the console")
	ada.do("POST", path, good(), "Sec-Fetch-Site", "same-site").want(t, 403, "does not come from the console")
	ada.do("POST", path, good(), "Origin", "https://evil.example").want(t, 403, "does not come from the console")
	ada.do("POST", "find", good(), "Origin", "null").want(t, 403, "does not come from the console")
	for name, token := range map[string]string{"none": "", "another operator's": r.as("bob").storyOf("k").form().Get("token"), "garbage": "AAAA",
		"another instance's": newRig(t, backends["memory"]).as("ada").get("").form().Get("token")} {
		v := good()
		v.Set("token", token)
		if got := ada.do("POST", path, v); got.status != 403 || !strings.Contains(got.body, "not yours") {
			t.Errorf("with the token of %s: %d %s", name, got.status, got.body)
		}
	}
	ada.do("GET", path+"?"+good().Encode(), nil).want(t, 404, "!settled")
	if state := r.record("k").State; state != driver.StateUnknown {
		t.Errorf("a forged form settled: %v", state)
	}
	ada.do("POST", path, good(), "Sec-Fetch-Site", "same-origin").want(t, 200, "Attempt 1 was settled by ada", "it did not take effect")
}

var inline = regexp.MustCompile(`(?i)<script(?:>| [^>]*>[^<])|<style|\sstyle=|\son[a-z]+=|javascript:`)

// Stored text cannot become markup, and no page has an inline script or style.
func TestPagesAreSafe(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	evil := `<script>alert(1)</script>" onload="x` + "\u202e\x1b"
	r.policy.Name = evil
	r.lost("evil", nil)
	r.policy.Name = route
	r.inDoubt("k", &idem.Response{Status: 500, Header: map[string][]string{"Etag": {evil}}, Body: []byte(evil)})
	ada := r.as("ada")
	ada.settle("k", ada.storyOf("k"), "outcome", "not-applied", "reason", evil)
	for _, path := range []string{"", "?view=all&route=" + url.QueryEscape(evil), "health", "key/" + id("evil").String(), "key/" + id("k").String(), "key/" + id("none").String(), "nowhere"} {
		got := ada.get(path)
		if found := inline.FindString(strings.ReplaceAll(got.body, " onload=&#34;x", "")); found != "" && !strings.Contains(found, "onload") {
			t.Errorf("%s has %q", path, found)
		}
		if strings.Contains(got.body, "<script>alert") || strings.ContainsAny(got.body, "\u202e\x1b") {
			t.Errorf("%s shows stored text as it is:\n%s", path, got.body)
		}
		h := got.header
		if csp := h.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'") || strings.Contains(csp, "unsafe") || !strings.Contains(csp, "frame-ancestors 'none'") ||
			h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s has the headers %v", path, h)
		}
	}
}

func TestFind(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.inDoubt("the-key", nil)
		r.inDoubt("settled", nil)
		ada := r.as("ada")
		ada.settle("settled", ada.storyOf("settled"), "outcome", "applied", "status", "204")
		token := ada.get("").form().Get("token")
		find := func(fields ...string) answer {
			v := url.Values{"token": {token}}
			for i := 0; i+1 < len(fields); i += 2 {
				v.Set(fields[i], fields[i+1])
			}
			return ada.do("POST", "find", v)
		}
		for _, fields := range [][]string{{"scope", "m", "key", "the-key"}, {"scope", " m ", "key", `"the-key"`}, {"key", id("the-key").String()},
			{"key", strings.ToUpper(id("the-key").String())}, {"key", " " + id("the-key").OperationID() + " "}, {"scope", "m", "key", id("the-key").OperationID()}} {
			got := find(fields...)
			got.want(r.T, 200, id("the-key").OperationID(), "!the-key")
			if got.path != "key/"+id("the-key").String() {
				r.Errorf("find %q led to %s", fields, got.path)
			}
		}
		find("key", id("settled").OperationID()).want(r.T, 200, "completed", id("settled").String())
		const proof = "This does not mean that nothing was charged"
		find("key", "op_00000000000000000000000000000000").want(r.T, 404, "No record has the operation ID op_0", proof)
		find("key", strings.Repeat("0", 64)).want(r.T, 404, "No record has the key ID 0", proof)
		find("scope", "m", "key", "a,b").want(r.T, 404, "not a valid key")
		find().want(r.T, 404, "Enter the key that the client sent")
		find("key", "the-key").want(r.T, 404, "without a scope. Enter its scope", "the merchant, such as m", proof)
		// The form keeps what was entered, and no address has it.
		got := find("scope", "<other>", "key", "the-key")
		got.want(r.T, 404, "No record for key “the-key” in scope “&lt;other&gt;”. A wrong scope looks the same", proof, `name="key" value="the-key"`, `name="scope" value="&lt;other&gt;"`)
		if got.path != "find" {
			r.Errorf("a search without a result led to %s", got.path)
		}
		if got := ada.get("find"); got.path != "" {
			r.Errorf("its address leads to %s, want the first page", got.path)
		}
	})
}

// A client may choose any key, also one that looks like the ID of another operation. A key of all
// callers has no scope.
func TestFindPrefersTheKeyInItsScope(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("the-key", nil)
	trap := idem.Key(id("the-key").OperationID())
	r.inDoubt(trap, nil)
	op := r.operation("global")
	op.Scope = ""
	if _, err := r.engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) { return idem.Response{Status: 200}, nil }); err != nil {
		t.Fatal(err)
	}
	ada := r.as("ada")
	token := ada.get("").form().Get("token")
	for _, tt := range []struct {
		scope string
		key   idem.Key
		want  driver.KeyID
	}{{"m", trap, id(trap)}, {"", trap, id("the-key")}, {"", "global", idem.NewKeyID("", "global")}} {
		got := ada.do("POST", "find", url.Values{"token": {token}, "scope": {tt.scope}, "key": {string(tt.key)}})
		if got.path != "key/"+tt.want.String() {
			t.Errorf("find %q in scope %q led to %s, want %v", tt.key, tt.scope, got.path, tt.want)
		}
	}
}

func TestInbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	for i := range 120 {
		r.inDoubt(idem.Key(fmt.Sprintf("k%03d", i)), nil)
	}
	ada := r.as("ada")
	next := regexp.MustCompile(`rel="next" href="([^"]+)"`)
	row := regexp.MustCompile(`href="\./key/([0-9a-f]{64})["?]`)
	var seen []string
	for path, pages := "", 0; ; pages++ {
		got := ada.get(path)
		got.want(t, 200)
		for _, m := range row.FindAllStringSubmatch(got.body, -1) {
			seen = append(seen, m[1])
		}
		m := next.FindStringSubmatch(got.body)
		if m == nil {
			if pages != 4 {
				t.Errorf("%d pages, want 5", pages+1)
			}
			break
		}
		path = strings.ReplaceAll(m[1], "&amp;", "&")
	}
	want := map[string]bool{}
	for _, s := range seen {
		want[s] = true
	}
	if len(seen) != 120 || len(want) != 120 || seen[0] != id("k000").String() {
		t.Errorf("%d rows, %d different, the first %s, want 120 from the oldest on", len(seen), len(want), seen[0])
	}
	ada.get("?older=1h").want(t, 200, "Nothing is in doubt here")
	ada.get("?state=pending").want(t, 200, "Nothing is in doubt here")
	ada.get("?route=refunds").want(t, 200, "Nothing is in doubt here")
	ada.get("?route=PAYMENTS").want(t, 200, id("k000").String())
	ada.get("?after=garbage&state=x&older=-1").want(t, 200, id("k000").String())
	ada.get("health").want(t, 200, "120 in doubt", "gives out locks", "has not swept")
}

// A story is in the order of time, and a key that is repeated for hours does not make its page endless.
func TestStoryShowsTheLatestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	_, seen, _ := strings.Cut(r.as("ada").storyOf("k").body, "Seen by this instance")
	if began, ended := strings.Index(seen, "Attempt 1 began"), strings.Index(seen, "The outcome is in doubt"); began < 0 || ended < began {
		t.Errorf("the attempt began at %d and ended at %d in\n%s", began, ended, seen)
	}
	for range 300 {
		r.console.Observe(t.Context(), telemetry.Event{Type: telemetry.EventRefused, KeyID: id("k"), Code: string(idem.CodeOutcomeUnknown)})
	}
	got := r.as("ada").storyOf("k")
	got.want(t, 200, "A request was refused <b>×300</b>", "!earlier ones")
	if form, seen := strings.Index(got.body, "<form method"), strings.Index(got.body, "Attempt 1 began</span>"); form < 0 || seen < 0 || strings.LastIndex(got.body, "A request was refused") < form {
		t.Errorf("the repeats come before the form:\n%s", got.body)
	}
	for i := range 300 {
		r.console.Observe(t.Context(), telemetry.Event{Type: []telemetry.EventType{telemetry.EventReplayed, telemetry.EventWaited}[i%2], KeyID: id("k")})
	}
	got = r.as("ada").storyOf("k")
	got.want(t, 200, "There are 503 earlier ones.", "!A request was refused") // three are of the attempt
	if n := strings.Count(got.body, "A repeat "); n != 100 {
		t.Errorf("%d events are shown, want the latest 100", n)
	}
}

// The strip is remembered for some seconds. It does not say that nothing is open above a list of
// what is open.
func TestStripDoesNotContradictTheList(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	ada := r.as("ada")
	ada.get("").want(t, 200, "No attempt is open")
	r.inDoubt("k", nil)
	ada.storyOf("k").want(t, 200, "1 in doubt", "!No attempt is open")
	ada.get("").want(t, 200, "1 in doubt", "!No attempt is open")
}

// A console that is mounted without its slash leads to the path with it, and not in a circle. No other path leads out of
// the console, wherever it is mounted.
func TestPathsStayInTheConsole(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	mounted := http.StripPrefix("/console", r.console)
	want := func(target string, status int, location string) {
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, target, nil)
		req.SetBasicAuth("ada", "secret")
		mounted.ServeHTTP(w, req)
		if w.Code != status || w.Header().Get("Location") != location {
			t.Errorf("GET %s = %d to %q, want %d to %q", target, w.Code, w.Header().Get("Location"), status, location)
		}
	}
	for _, target := range []string{"/console", "/console?view=all"} {
		want(target, http.StatusSeeOther, "/console/")
	}
	for _, target := range []string{"/console//", "/console///", "/console//key/x", "/console/key/../../x", "/console/./", "/console/assets", "/console/assets//", "/console/health//"} {
		want(target, http.StatusNotFound, "")
	}
}

// A handler that runs is no doubt. It is listed among all open records.
func TestRunningHandlersAreNoDoubts(t *testing.T) {
	t.Parallel()
	for name, b := range map[string]backend{"young": backends["memory"], "old": func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		store := memorystore.New(memorystore.WithClock(func() time.Time { return time.Now().Add(-time.Hour) }))
		return newEngine(t, memorylock.New(), store, opts...), store
	}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, b)
			_, err := r.engine.Do(r.Context(), r.operation("k"), func(context.Context) (idem.Response, error) {
				r.as("ada").get("").want(t, 200, "Nothing is in doubt here", "1 attempt still runs or holds a lock", `href="?view=all"`)
				r.as("ada").get("?view=all").want(t, 200, "alive: ", "when the handler ends", id("k").OperationID(), "!still runs or holds")
				return idem.Response{Status: 200}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The story tells what the resolver said, and who decided about earlier attempts.
func TestStoryTellsOfResolverAndDecisions(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			return idem.StillUnknown(), errors.New("the ledger timed out")
		})
		r.serve()
		r.inDoubt("k", nil)
		ada := r.as("ada")
		ada.settle("k", ada.storyOf("k"), "outcome", "not-applied", "reason", "never reached the bank")
		r.beginAgain("k")
		if _, err := r.engine.Resolve(r.Context(), id("k"), &r.policy); err != nil {
			r.Fatal(err)
		}
		ada.storyOf("k").want(r.T, 200, "unknown", "it failed: the ledger timed out", "never reached the bank", "Attempt 1 was settled", "it did not take effect", "Attempt 2 ended in doubt",
			"ask the route&#39;s resolver again", "Seen by this instance")
		ada.get("").want(r.T, 200, "it failed: the ledger timed out")
	})
}

func TestHealth(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["redis"])
	r.console.Swept(t.Context(), sweeper.Pass{Leader: true, Looked: 7, Applied: 2})
	got := r.as("reader").get("health")
	got.want(t, 200, "gives out locks", "accepts new records", "looked at 7 records and settled 2", "No replica is attached", "No attempt is open", "serves no route")
	if _, err := r.engine.Fit(idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}); err != nil {
		t.Fatal(err)
	}
	r.serve() // the page before is kept for a few seconds
	r.as("reader").get("health").want(t, 200, "POST /pay", "lock in Redis, records in Redis", "in doubt after an outage, a crash")
	r.as("reader").get("health").want(t, 200, "!Requests without a key")
	for _, route := range []string{"POST /refund", "POST /pay", "POST /pay"} {
		r.engine.ReportUnprotected(t.Context(), route)
	}
	r.serve()
	r.as("reader").get("health").want(t, 200, "Requests without a key", "<dt>POST /pay</dt><dd>2, the last one", "<dt>POST /refund</dt><dd>1, the last one")
	for want, pass := range map[string]sweeper.Pass{"looked at 1 record and settled 1": {Leader: true, Looked: 1, Applied: 1}, "ago 1 record failed": {Leader: true, Looked: 1, Failed: 1}} {
		r = newRig(t, backends["memory"])
		r.console.Swept(t.Context(), pass)
		r.as("reader").get("health").want(t, 200, want)
	}
}
