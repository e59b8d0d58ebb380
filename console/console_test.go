package console_test

import (
	"cmp"
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

// A key that is repeated for hours does not make its page endless.
func TestStoryShowsTheLatestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
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

func TestStoryIsInTheOrderOfTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.inDoubt("k", nil)
	_, seen, _ := strings.Cut(r.as("ada").storyOf("k").body, "Seen by this instance")
	began, ended := strings.Index(seen, "Attempt 1 began"), strings.Index(seen, "The outcome is in doubt")
	if began < 0 || ended < began {
		t.Errorf("the attempt began at %d and ended at %d in\n%s", began, ended, seen)
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

// slowStore lists one page, and nothing more in the time that a page has.
type slowStore struct{ *memorystore.Store }

func (s slowStore) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	if q.After != nil {
		<-ctx.Done()
		return driver.OpenPage{}, ctx.Err()
	}
	return s.Store.ListOpen(ctx, q)
}

// A store with more doubts than can be counted in time is not told as one that does not answer.
func TestDoubtsOfASlowStoreAreCountedInPart(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		store := slowStore{memorystore.New()}
		return newEngine(t, memorylock.New(), store, opts...), store
	})
	for i := range 501 {
		r.inDoubt(idem.Key(fmt.Sprintf("k%03d", i)), nil)
	}
	r.as("ada").get("health").want(t, 200, "more than 500 in doubt", "!does not answer", "!does not tell its domain", "There are more")
}

// A console that is mounted without its slash leads to the path with it, and not in a circle.
func TestMountedWithoutTheSlash(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	mounted := http.StripPrefix("/console", r.console)
	for _, target := range []string{"/console", "/console?view=all"} {
		w := httptest.NewRecorder()
		mounted.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
		if got := w.Header().Get("Location"); w.Code != http.StatusSeeOther || got != "/console/" {
			t.Errorf("GET %s = %d to %q, want /console/", target, w.Code, got)
		}
	}
}

// No path leads out of the console, wherever it is mounted.
func TestOddPathsStayInTheConsole(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	mounted := http.StripPrefix("/console", r.console)
	for _, target := range []string{"/console//", "/console///", "/console//key/x", "/console/key/../../x", "/console/./", "/console/assets", "/console/assets//", "/console/health//"} {
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodGet, target, nil)
		req.SetBasicAuth("ada", "secret")
		mounted.ServeHTTP(w, req)
		if w.Code != http.StatusNotFound || w.Header().Get("Location") != "" {
			t.Errorf("GET %s = %d to %q, want 404", target, w.Code, w.Header().Get("Location"))
		}
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
	got.want(t, 200, "gives out locks", "accepts new records", "looked at 7 records and settled 2", "No replica is attached", "No attempt is open")
}

// A server that is down is told to operators, without its address.
func TestStoreThatIsDown(t *testing.T) {
	t.Parallel()
	store := brokenStore{memorystore.New()}
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		return newEngine(t, memorylock.New(), store, opts...), store
	})
	for _, path := range []string{"", "key/" + id("k").String()} {
		r.as("ada").get(path).want(t, 503, "does not answer", "!10.0.0.1")
	}
	r.as("ada").get("health").want(t, 200, "could not be listed", "does not accept new records", "!10.0.0.1")
	if !strings.Contains(r.log.String(), "10.0.0.1") {
		t.Errorf("the log does not tell the reason: %s", r.log)
	}
}

// A part of the store that does not answer hides no records of the others.
func TestStoreThatIsDownInPart(t *testing.T) {
	t.Parallel()
	store := partialStore{memorystore.New()}
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		return newEngine(t, memorylock.New(), store, opts...), store
	})
	if _, err := store.Begin(t.Context(), id("k"), driver.BeginRequest{Route: "POST /part", Nonce: driver.NewNonce(), Fence: driver.Fence{Domain: "d", Token: 1}}); err != nil {
		t.Fatal(err)
	}
	r.as("ada").get("?view=all").want(t, 200, "A part of the token store does not answer", "POST /part", "!10.0.0.1")
	r.as("ada").get("health").want(t, 200, "A part of the token store does not answer", "1 running or interrupted", "!10.0.0.1")
}

// partialStore lists what the part has that answers.
type partialStore struct{ *memorystore.Store }

func (s partialStore) ListOpen(ctx context.Context, q driver.OpenQuery) (driver.OpenPage, error) {
	page, err := s.Store.ListOpen(ctx, q)
	return page, cmp.Or(err, errDown)
}

type brokenStore struct{ *memorystore.Store }

var errDown = fmt.Errorf("%w: dial 10.0.0.1: refused", driver.ErrUnavailable)

func (brokenStore) Get(context.Context, driver.KeyID) (driver.Record, error) {
	return driver.Record{}, errDown
}
func (brokenStore) ListOpen(context.Context, driver.OpenQuery) (driver.OpenPage, error) {
	return driver.OpenPage{}, errDown
}
func (brokenStore) Ping(context.Context) error { return errDown }

// Several thousand open records stay usable. The figures are in the log of the test.
func TestThousandsOfOpenRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["redis"])
	const n = 5000
	if err := r.store.RetireDomain(t.Context(), "d", driver.Decision{By: "ada"}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		key := idem.Key(fmt.Sprintf("k%d", i))
		a := r.begin(key, driver.Fence{Domain: "d", Token: 1})
		s := driver.Settlement{Attempt: a, ID: driver.NewNonce(), State: driver.StateUnknown}
		if got, err := r.store.Settle(t.Context(), id(key), s); err != nil || !got.Settled {
			t.Fatalf("Settle() = %+v, %v", got, err)
		}
	}
	ada := r.as("ada")
	timed := func(what, path string) answer {
		start := time.Now()
		got := ada.get(path)
		t.Logf("%s of %d open records: %v, %d bytes", what, n, time.Since(start).Round(time.Millisecond), len(got.body))
		return got
	}
	timed("first page, with the strip", "").want(t, 200, fmt.Sprintf("%d in doubt", n))
	next := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(timed("first page", "").body)
	if next == nil {
		t.Fatal("there is no next page")
	}
	timed("next page", strings.ReplaceAll(next[1], "&amp;", "&")).want(t, 200, "First page")
	timed("a filter without a match", "?route=refunds").want(t, 200, "records were read for this page", "Go on searching")
	timed("health", "health").want(t, 200, fmt.Sprintf("%d in doubt", n))
	op := id("k4999").OperationID()
	start := time.Now()
	ada.do("POST", "find", url.Values{"token": {ada.get("").form().Get("token")}, "key": {op}}).want(t, 200, op)
	t.Logf("search for an operation ID: %v", time.Since(start).Round(time.Millisecond))
}
