package console_test

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"html"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func nth(i int) idem.Key { return idem.Key(fmt.Sprintf("k%03d", i)) }

// manyInDoubt leaves the outcomes of some keys in doubt.
func (r *rig) manyInDoubt(from, to int, resp *idem.Response) {
	r.Helper()
	for i := from; i < to; i++ {
		r.inDoubt(nth(i), resp)
	}
}

var shownPick = regexp.MustCompile(`name="shown" value="([^"]*)"`)

// picks are the attempts that a list offers.
func (a answer) picks() (list []string) {
	for _, m := range shownPick.FindAllStringSubmatch(a.body, -1) {
		list = append(list, html.UnescapeString(m[1]))
	}
	return list
}

// choose presses a button of a list: "ticked" with the given picks, "page" or "filter".
func (b *browser) choose(list answer, which string, picks ...string) answer {
	b.Helper()
	v := list.form()
	v.Set("filter", html.UnescapeString(v.Get("filter")))
	v.Set("which", which)
	v["shown"], v["pick"] = list.picks(), picks
	return b.do("POST", "select", v)
}

// settleMany sends the confirmation of a selection.
func (b *browser) settleMany(page answer, outcome string, fields ...string) answer {
	b.Helper()
	v := url.Values{"token": {page.form().Get("token")}, "outcome": {outcome}, "reason": {"incident 12"}}
	if m := regexp.MustCompile(`id="` + outcome + `-confirm"[^>]* title="([^"]*)"`).FindStringSubmatch(page.body); m != nil {
		v.Set("confirm", m[1])
	}
	for i := 0; i+1 < len(fields); i += 2 {
		v.Set(fields[i], fields[i+1])
	}
	return b.do("POST", strings.TrimSuffix(page.path, "/settle")+"/settle", v)
}

// ended waits for the end of a run, and returns its page.
func (b *browser) ended(run answer) answer {
	b.Helper()
	if run.status != 200 || !strings.HasPrefix(run.path, "runs/") {
		b.Fatalf("no run: %d %s\n%s", run.status, run.path, run.body)
	}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for strings.Contains(run.body, `http-equiv="refresh"`) {
		<-again.C
		run = b.get(run.path)
	}
	return run
}

// results counts the results of a run's CSV, and returns its lines without the header.
func (b *browser) results(run answer) (counts map[string]int, lines [][]string) {
	b.Helper()
	path, _, _ := strings.Cut(run.path, "?")
	got := b.get(path + "/results.csv")
	if got.status != 200 || got.header.Get("Content-Type") != "text/csv; charset=utf-8" || !strings.HasPrefix(got.header.Get("Content-Disposition"), "attachment") {
		b.Fatalf("results: %d %v", got.status, got.header)
	}
	lines, err := csv.NewReader(strings.NewReader(got.body)).ReadAll()
	if err != nil || lines[0][0] != "key_id" || lines[0][5] != "result" {
		b.Fatalf("%v in\n%s", err, got.body)
	}
	counts = map[string]int{}
	for _, line := range lines[1:] {
		counts[line[5]]++
	}
	return counts, lines[1:]
}

func (b *browser) wantResults(run answer, want map[string]int) {
	b.Helper()
	if got, lines := b.results(run); fmt.Sprint(got) != fmt.Sprint(want) {
		b.Errorf("the results are %v, want %v:\n%v", got, want, lines)
	}
}

// An operator settles all that a filter selects. Another one who has selected the same settles nothing twice.
func TestSettleAllThatTheFilterSelects(t *testing.T) {
	eachBackend(t, func(r *rig) {
		const n = 30
		r.lookUp = nil
		r.serveWithoutLookUp()
		r.manyInDoubt(0, n, nil)
		ada, bob := r.as("ada"), r.as("bob")
		mine, his := ada.choose(ada.get(""), "filter"), bob.choose(bob.get(""), "filter")
		mine.want(r.T, 200, "Settle 30 records on 1 route<", route, "The oldest 25 of 30 records", `title="again 30"`, `title="done 30"`, "!answer that is kept with each", "!the service finds", "happens <b>twice</b>")
		done := ada.ended(ada.settleMany(mine, "not-applied"))
		done.want(r.T, 200, "30 of 30 records are settled", "It did not take effect", "incident 12", "ada, since", ">settled</span>", "!>already settled</span>", "!Stop</button>")
		ada.wantResults(done, map[string]int{"settled": n})
		for i := range n {
			rec := r.record(nth(i))
			if rec.State != driver.StateReleased || rec.Decision != (driver.Decision{By: "ada", Reason: "incident 12"}) {
				r.Fatalf("record %d is %v with %+v", i, rec.State, rec.Decision)
			}
		}
		late := bob.ended(bob.settleMany(his, "not-applied"))
		late.want(r.T, 200, "30 of 30 records are settled", ">already settled</span>", "attempt 1 is released since", ", by ada", "!>settled</span>")
		bob.wantResults(late, map[string]int{"already settled": n})
		if log := r.log.String(); strings.Count(log, "an operator settled an attempt") != n {
			r.Errorf("the log does not tell of %d settlements", n)
		}
		r.as("reader").get("runs").want(r.T, 200, "30 of 30", "By bob, ")
	})
}

// An operator has verified what the list had. What the keys did since is not selected with it.
func TestFilterSelectsNothingThatCameLater(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.manyInDoubt(0, 2, nil)
		ada := r.as("ada")
		list := ada.get("")
		p := r.policy
		if _, err := r.engine.Decide(r.Context(), id(nth(0)), r.record(nth(0)).Attempt, idem.NotApplied(), driver.Decision{By: "bob", Reason: "mine"}, &p); err != nil {
			r.Fatal(err)
		}
		second := driver.Settlement{Attempt: r.beginAgain(nth(0)), ID: driver.NewNonce(), State: driver.StateUnknown}
		if got, err := r.store.Settle(r.Context(), id(nth(0)), second); err != nil || !got.Settled {
			r.Fatalf("Settle() = %+v, %v", got, err)
		}
		r.manyInDoubt(2, 3, nil)
		page := ada.choose(list, "filter")
		page.want(r.T, 200, "2 records went into doubt after you opened the list")
		ada.wantResults(ada.ended(ada.settleMany(page, "not-applied")), map[string]int{"settled": 1})
		if rec := r.record(nth(0)); rec.State != driver.StateUnknown || rec.Attempt.Number != 2 {
			r.Errorf("the second attempt, %d, is %v, want it in doubt", rec.Attempt.Number, rec.State)
		}
		later := list.form()
		later.Set("which", "filter")
		later.Del("seen")
		ada.do("POST", "select", later).want(r.T, 422, "Open the list again")
	})
}

// serveWithoutLookUp makes the console without a look-up.
func (r *rig) serveWithoutLookUp() {
	r.Helper()
	r.noLookUp = true
	r.serve()
}

// A decision is about the attempts that were shown, whatever the keys did since.
func TestSettleManyIsAboutTheAttemptsThatWereSeen(t *testing.T) {
	eachBackend(t, func(r *rig) {
		r.manyInDoubt(0, 4, nil)
		ada := r.as("ada")
		page := ada.choose(ada.get(""), "page")
		p := r.policy
		decide := func(i int, resolution idem.Resolution) {
			r.Helper()
			if _, err := r.engine.Decide(r.Context(), id(nth(i)), r.record(nth(i)).Attempt, resolution, driver.Decision{By: "bob", Reason: "mine"}, &p); err != nil {
				r.Fatal(err)
			}
		}
		decide(0, idem.Applied(paid()))
		decide(1, idem.NotApplied())
		r.beginAgain(nth(1))
		done := ada.ended(ada.settleMany(page, "not-applied"))
		done.want(r.T, 200, "3 of 4 records are settled", "1 was not settled", "attempt 1 is completed since", ", by bob")
		ada.wantResults(done, map[string]int{"settled": 2, "already settled": 1, "changed since": 1})
		if rec := r.record(nth(1)); rec.State != driver.StatePending || rec.Attempt.Number != 2 {
			r.Errorf("the second attempt is %v", rec.State)
		}
		if rec := r.record(nth(0)); rec.State != driver.StateCompleted {
			r.Errorf("the decision of another became %v", rec.State)
		}
		// What is over is not selected again.
		ada.choose(ada.get(""), "ticked", r.pickOf(nth(2))).want(r.T, 409, "no longer in doubt")
	})
}

// pickOf is what the list had for the attempt of a key, if no answer was kept.
func (r *rig) pickOf(key idem.Key) string {
	r.Helper()
	a := r.record(key).Attempt
	return fmt.Sprintf("%s - %d.%s.%d.%s", id(key), a.Number, a.Nonce, a.Fence.Token, a.Fence.Domain)
}

// The ticked ones are settled and no others, with one answer for all.
func TestSettleTheTickedOnes(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.manyInDoubt(0, 5, nil)
	ada := r.as("ada")
	list := ada.get("")
	picks := list.picks()
	if len(picks) != 5 {
		t.Fatalf("the list offers %q", picks)
	}
	ada.choose(list, "ticked").want(t, 422, "Nothing is selected")
	page := ada.choose(list, "ticked", picks[1], picks[3])
	page.want(t, 200, "Settle 2 records on 1 route", id(nth(1)).OperationID(), id(nth(3)).OperationID(), "!"+id(nth(0)).OperationID())
	done := ada.ended(ada.settleMany(page, "applied", "status", "202", "content-type", "application/json", "body", `{"status":"accepted"}`))
	ada.wantResults(done, map[string]int{"settled": 2})
	for i := range 5 {
		rec, want := r.record(nth(i)), driver.StateUnknown
		if i == 1 || i == 3 {
			want = driver.StateCompleted
		}
		if rec.State != want {
			t.Errorf("record %d is %v, want %v", i, rec.State, want)
		}
	}
	if rec := r.record(nth(3)); rec.Response.Status != 202 || string(rec.Response.Body) != `{"status":"accepted"}` {
		t.Errorf("repeats get %+v", rec.Response)
	}
}

// The list is filtered by route, by the start of the attempt and by the kept answer, and so is what it selects.
func TestFilterOfTheList(t *testing.T) {
	t.Parallel()
	clock := time.Date(2026, 5, 1, 10, 0, 0, 0, time.UTC)
	var passed atomic.Int64
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		store := memorystore.New(memorystore.WithClock(func() time.Time { return clock.Add(time.Duration(passed.Load())) }))
		return newEngine(t, memorylock.New(), store, opts...), store
	})
	r.serveWithoutLookUp()
	success := paid()
	add := func(i int, on string, resp *idem.Response) {
		r.policy.Name = on
		r.lost(nth(i), nil)
		if resp != nil { // a handler that has returned with a success, and whose lease was lost
			r.keep(nth(100+i), on, resp)
		}
		passed.Add(int64(time.Hour))
	}
	add(0, route, nil)
	add(1, "POST /v1/refunds", &success)
	add(2, "POST /v1/refunds", &idem.Response{Status: 500, Body: []byte("oops")})
	ops := func(keys ...int) (list []string) {
		for _, i := range keys {
			list = append(list, id(nth(i)).OperationID())
		}
		return list
	}
	for _, tt := range []struct {
		query   string
		in, out []int
	}{
		{"", []int{0, 1, 2, 101, 102}, nil},
		{"?route=refunds", []int{1, 2, 101, 102}, []int{0}},
		{"?from=2026-05-01T11:00", []int{1, 101, 2, 102}, []int{0}},
		{"?from=2026-05-01T11:00:01&until=2026-05-01T23:00", []int{2, 102}, []int{0, 1, 101}},
		{"?until=2026-05-01T11:00", []int{0}, []int{1, 2, 101, 102}},
		{"?until=2026-05-01T11:00:01", []int{0, 1, 101}, []int{2, 102}},
		{"?from=2026-05-01&until=2026-05-02", []int{0, 1, 2, 101, 102}, nil},
		{"?from=2026-05-02", nil, []int{0, 1, 2, 101, 102}},
		{"?kept=success", []int{101}, []int{0, 1, 2, 102}},
		{"?kept=other", []int{102}, []int{0, 1, 2, 101}},
		{"?kept=none", []int{0, 1, 2}, []int{101, 102}},
		{"?kept=success&route=payments", nil, []int{0, 1, 2, 101, 102}},
		{"?from=nonsense&kept=nonsense", []int{0, 1, 2, 101, 102}, nil},
	} {
		ada := r.as("ada")
		list := ada.get(tt.query)
		list.want(t, 200, ops(tt.in...)...)
		for _, op := range ops(tt.out...) {
			list.want(t, 200, "!"+op)
		}
		if len(tt.in) == 0 {
			continue
		}
		page := ada.choose(list, "filter")
		page.want(t, 200, fmt.Sprintf(`title="again %d"`, len(tt.in)))
		page.want(t, 200, ops(tt.in...)...)
	}
}

// keep leaves a response with an outcome in doubt.
func (r *rig) keep(key idem.Key, on string, resp *idem.Response) {
	r.Helper()
	domain, err := r.engine.DomainOf(r.Context(), id(key))
	if err != nil {
		r.Fatal(err)
	}
	fp, err := r.operation(key).Fingerprint(idem.FingerprintVersion)
	if err != nil {
		r.Fatal(err)
	}
	res, err := r.store.Begin(r.Context(), id(key), driver.BeginRequest{Route: on, Fence: driver.Fence{Domain: domain, Token: 1}, Nonce: driver.NewNonce(), Fingerprint: fp, KeyTTL: 100 * time.Hour})
	if err != nil || !res.Begun {
		r.Fatalf("Begin() = %+v, %v", res, err)
	}
	s := driver.Settlement{Attempt: res.Record.Attempt, ID: driver.NewNonce(), State: driver.StateUnknown, Response: (*driver.Response)(resp), KeyTTL: 100 * time.Hour}
	if got, err := r.store.Settle(r.Context(), id(key), s); err != nil || !got.Settled {
		r.Fatalf("Settle() = %+v, %v", got, err)
	}
}

// Repeats get the answer that was kept. A failure is no answer for an operation that took effect.
func TestSettleManyWithTheKeptAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	success := paid()
	r.keep(nth(0), route, &success)
	r.keep(nth(1), route, &idem.Response{Status: 500, Body: []byte("oops")})
	r.inDoubt(nth(2), nil)
	ada := r.as("ada")
	page := ada.choose(ada.get(""), "filter")
	page.want(t, 200, "1 of 3 have a kept answer that tells of a success. The others are left in doubt.")
	done := ada.ended(ada.settleMany(page, "kept"))
	done.want(t, 200, "1 of 3 records are settled", "2 were not settled", "No answer that tells of a success is kept")
	ada.wantResults(done, map[string]int{"settled": 1, "refused": 2})
	r.wantResponse(nth(0), paid())
}

// Each operation is looked up again, by the rules of single decisions.
func TestSettleManyLooksUpAgain(t *testing.T) {
	t.Parallel()
	answers := map[string]struct {
		found console.Found
		err   error
	}{
		id(nth(0)).OperationID(): {console.Found{Says: "pay_0: 12.50 USD by alice", Answer: paid()}, nil},
		id(nth(1)).OperationID(): {console.Found{Says: "pay_1", Answer: paid(), Hint: "a receipt"}, nil},
		id(nth(2)).OperationID(): {console.Found{Nothing: true}, nil},
		id(nth(3)).OperationID(): {console.Found{}, errors.New("the ledger at 10.0.0.7 is away")},
		id(nth(4)).OperationID(): {console.Found{}, nil},
	}
	for outcome, settled := range map[string][]int{"found": {0}, "applied": {1, 2, 3, 4}, "not-applied": {2, 4}} {
		t.Run(outcome, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, backends["memory"])
			var looked atomic.Int32
			r.lookUp = func(_ context.Context, _, op string) (console.Found, error) {
				looked.Add(1)
				return answers[op].found, answers[op].err
			}
			r.manyInDoubt(0, 5, nil)
			ada := r.as("ada")
			list := ada.get("")
			list.want(t, 200, "<b>Found</b> pay_0: 12.50 USD by alice<", "<b>Found</b> nothing, which is no proof", "<b>Found</b> the look-up failed", "!10.0.0.7")
			if n := looked.Load(); n != 5 {
				t.Errorf("the list looked %d operations up, want 5", n)
			}
			done := ada.ended(ada.settleMany(ada.choose(list, "page"), outcome, "status", "201", "content-type", "application/json", "body", `{"a":1}`))
			done.want(t, 200, fmt.Sprintf("%d of 5 records are settled", len(settled)))
			ada.wantResults(done, map[string]int{"settled": len(settled), "refused": 5 - len(settled)})
			for i := range 5 {
				want := driver.StateUnknown
				for _, s := range settled {
					if want = driver.StateCompleted; s == i {
						break
					}
					want = driver.StateUnknown
				}
				if outcome == "not-applied" && want == driver.StateCompleted {
					want = driver.StateReleased
				}
				if got := r.record(nth(i)).State; got != want {
					t.Errorf("record %d is %v, want %v", i, got, want)
				}
			}
			if outcome == "found" {
				r.wantResponse(nth(0), paid())
			}
		})
	}
}

// A look-up that hangs costs a list two seconds at most.
func TestListDoesNotWaitForALookUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.manyInDoubt(0, 20, nil)
	var quick atomic.Bool
	end := make(chan struct{})
	t.Cleanup(func() { close(end) })
	r.lookUp = func(context.Context, string, string) (console.Found, error) {
		if !quick.Load() {
			<-end
		}
		return console.Found{Says: "pay_1"}, nil
	}
	r.as("ada").get("").want(t, 200, "not looked up in time", id(nth(19)).OperationID())
	quick.Store(true) // single look-ups have places of their own
	r.as("ada").storyOf(nth(0)).want(t, 200, "The service found:</b> pay_1")
}

// A holder is not overruled, and another process with the lock is left in peace.
func TestSettleManyUnderTheLock(t *testing.T) {
	t.Parallel()
	locker := memorylock.New()
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		store := memorystore.New()
		return newEngine(t, locker, store, opts...), store
	})
	r.manyInDoubt(0, 3, nil)
	ada := r.as("ada")
	page := ada.choose(ada.get(""), "filter")
	lock, err := locker.TryAcquire(t.Context(), driver.LockRequest{KeyID: id(nth(1)), Nonce: driver.NewNonce()})
	if err != nil {
		t.Fatal(err)
	}
	done := ada.ended(ada.settleMany(page, "not-applied"))
	done.want(t, 200, "2 of 3 records are settled", ">locked</span>")
	ada.wantResults(done, map[string]int{"settled": 2, "locked": 1})
	ada.get(done.path+"?only=locked").want(t, 200, id(nth(1)).OperationID(), "!"+id(nth(0)).OperationID())
	if err := lock.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The rest is still in the list, and a second run settles it.
	done = ada.ended(ada.settleMany(ada.choose(ada.get(""), "filter"), "not-applied"))
	ada.wantResults(done, map[string]int{"settled": 1})
}

// blocked makes a look-up that waits. The function that it returns lets it go on.
func (r *rig) blocked() (goOn func()) {
	gate := make(chan struct{})
	r.lookUp = func(ctx context.Context, _, _ string) (console.Found, error) {
		select {
		case <-gate:
		case <-ctx.Done():
		}
		return console.Found{}, nil
	}
	return func() { close(gate) }
}

// A run goes on without the browser. An instance has one at a time, a form that is sent twice has one run, and any
// operator who may settle can stop it.
func TestRunIsStopped(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	const n = 200
	r.manyInDoubt(0, n, nil)
	ada, bob, reader := r.as("ada"), r.as("bob"), r.as("reader")
	list := ada.get("")
	page, other := ada.choose(list, "filter"), bob.choose(bob.get(""), "page")
	goOn := r.blocked()
	run := ada.settleMany(page, "not-applied")
	run.want(t, 200, "Settling 200 records", `http-equiv="refresh" content="2"`, "<progress max=\"200\"", "Stop</button>")
	if again := ada.settleMany(page, "not-applied"); again.path != run.path {
		t.Errorf("the same form again leads to %s, want %s", again.path, run.path)
	}
	if back := ada.get(page.path); back.path != run.path {
		t.Errorf("the confirmation of a run leads to %s, want %s", back.path, run.path)
	}
	bob.get(other.path).want(t, 200, "Another run is under way")
	bob.settleMany(other, "applied", "body", `{"a":1}`, "status", "200").want(t, 409, "one at a time", "Nothing was settled", "incident 12", `{&#34;a&#34;:1}`)
	reader.get(run.path).want(t, 200, "Settling 200 records", "!Stop</button>")
	reader.do("POST", run.path+"/stop", url.Values{"token": {reader.get("").form().Get("token")}}).want(t, 403, "Nothing was stopped")
	bob.do("POST", run.path+"/stop", url.Values{"token": {bob.get("").form().Get("token")}}).want(t, 200, "bob has stopped the run", "!Stop</button>")
	goOn()
	done := ada.ended(run)
	done.want(t, 200, "Stopped after", "bob has stopped the run", ">not tried</span>", "still in the list")
	counts, _ := ada.results(done)
	// On a slow machine a blocked look-up fails by its time-out, and its record is refused.
	if counts["not tried"] == 0 || counts["settled"]+counts["refused"]+counts["not tried"] != n {
		t.Errorf("the results are %v", counts)
	}
	released := 0
	for i := range n {
		if r.record(nth(i)).State == driver.StateReleased {
			released++
		}
	}
	if released != counts["settled"] {
		t.Errorf("%d are released, and %d are reported as settled", released, counts["settled"])
	}
	// A second run settles the rest, and nothing twice.
	rest := ada.ended(ada.settleMany(ada.choose(ada.get(""), "filter"), "not-applied"))
	ada.wantResults(rest, map[string]int{"settled": n - released})
	ada.get("?").want(t, 200, "Nothing is in doubt here")
	ada.get("runs").want(t, 200, "stopped</span>", fmt.Sprintf("%d of 200", released))
}

// The end of the console ends its run.
func TestCloseEndsARun(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.manyInDoubt(0, 100, nil)
	ada := r.as("ada")
	page := ada.choose(ada.get(""), "filter")
	goOn := r.blocked()
	run := ada.settleMany(page, "not-applied")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.console.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Close() = %v, want that a run has not ended", err)
	}
	goOn()
	if err := r.console.Close(t.Context()); err != nil {
		t.Errorf("Close() = %v", err)
	}
	ada.get(run.path).want(t, 200, "Broken off after", "This instance ended before the run")
	ada.settleMany(ada.choose(ada.get(""), "filter"), "not-applied").want(t, 409, "Nothing was settled")
}

// Servers that fail end a run, and no page names them.
func TestRunWhoseServersFail(t *testing.T) {
	t.Parallel()
	var store *idemtest.FaultyStore
	r := newRig(t, func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		store = idemtest.NewFaultyStore(memorystore.New())
		return newEngine(t, memorylock.New(), store, opts...), store
	})
	const n = 300
	r.manyInDoubt(0, n, nil)
	ada := r.as("ada")
	page := ada.choose(ada.get(""), "filter")
	store.Before("Get", idemtest.Every, func() error {
		return fmt.Errorf("%w: dial tcp 10.1.2.3:6379", driver.ErrUnavailable)
	})
	done := ada.ended(ada.settleMany(page, "not-applied"))
	done.want(t, 200, "Broken off after", "So many decisions failed in a row", "The token store did not answer. Nothing was settled.", "!10.1.2.3")
	if counts, lines := ada.results(done); counts["failed"] < 100 || counts["not tried"] == 0 || strings.Contains(fmt.Sprint(lines), "10.1.2.3") {
		t.Errorf("the results are %v: %v", counts, lines)
	}
	if !strings.Contains(r.log.String(), "10.1.2.3") {
		t.Error("the log does not have the reason")
	}
	store.Heal("Get")
	rest := ada.ended(ada.settleMany(ada.choose(ada.get(""), "filter"), "not-applied"))
	ada.wantResults(rest, map[string]int{"settled": n})
}

// Who may not settle selects nothing. A selection belongs to its operator and to this instance.
func TestSelectionIsGuarded(t *testing.T) {
	t.Parallel()
	r := newRig(t, backends["memory"])
	r.manyInDoubt(0, 2, nil)
	ada, bob, reader := r.as("ada"), r.as("bob"), r.as("reader")
	list := ada.get("")
	reader.get("").want(t, 200, id(nth(0)).OperationID(), "!checkbox", "!action=\"./select\"")
	reader.choose(reader.get(""), "filter").want(t, 403, "Nothing was selected")
	reader.choose(list, "filter").want(t, 403, "not yours")
	page := ada.choose(list, "filter")
	bob.get(page.path).want(t, 404, "not yours")
	reader.get(page.path).want(t, 403)
	bob.settleMany(bob.choose(bob.get(""), "filter"), "not-applied", "token", page.form().Get("token")).want(t, 403)
	for _, name := range []string{"bob", "reader"} {
		b := r.as(name)
		b.do("POST", page.path+"/settle", url.Values{"token": {b.get("").form().Get("token")}, "outcome": {"not-applied"}, "reason": {"x"}, "confirm": {"again 2"}}).
			want(t, map[string]int{"bob": 404, "reader": 403}[name], "Nothing was settled")
	}
	ada.do("POST", "select", url.Values{"which": {"filter"}}).want(t, 403)
	ada.do("POST", page.path+"/settle", url.Values{}).want(t, 403)
	ada.do("POST", "select", list.form(), "Sec-Fetch-Site", "cross-site").want(t, 403)
	ada.get("select/ABC").want(t, 404, "Nothing was settled. Select the records again")
	ada.get("runs/ABC").want(t, 404, "settled twice", `http-equiv="refresh"`)
	ada.get("runs/ABC/results.csv").want(t, 404)
	ada.get("runs").want(t, 200, "No selection was settled here")
	for _, picks := range [][]string{{"x"}, {"x y z"}, {id("k").String() + " - 1.2.3.4"}, make([]string, 26)} {
		ada.choose(list, "ticked", picks...).want(t, 422, "Nothing was selected")
	}
	for _, tt := range []struct {
		fields []string
		want   string
	}{
		{[]string{"outcome", "nonsense"}, "Choose what happened"},
		{[]string{"outcome", "kept"}, "Choose what happened"}, // none is kept
		{[]string{"reason", " "}, "Give a reason"},
		{[]string{"reason", strings.Repeat("x", 513)}, "513 bytes"},
		{[]string{"confirm", "again 3"}, "is “again 2”"},
		{[]string{"confirm", "done 2"}, "is “again 2”"},
		{[]string{"outcome", "applied"}, "is “done 2”"},
		{[]string{"outcome", "applied", "confirm", "done 2", "status", "500", "body", "x"}, "tells the client that it failed"},
		{[]string{"outcome", "applied", "confirm", "done 2", "status", "201"}, "The body is empty"},
	} {
		ada.settleMany(page, "not-applied", tt.fields...).want(t, 422, tt.want, "Nothing was settled")
	}
	for i := range 2 {
		if state := r.record(nth(i)).State; state != driver.StateUnknown {
			t.Errorf("record %d is %v", i, state)
		}
	}
}
