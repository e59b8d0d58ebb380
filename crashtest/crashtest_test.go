package crashtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// bank is the ledger of these tests. It runs in the process of the test.
type bank struct {
	honoursKeys bool // so a service need not note anything
	forgetful   bool // the service notes nothing either
	locks       bool // the second capture of a key waits for ever
	ignored     bool // the service takes an error for a success
	refuses     func(start int) bool

	mu       sync.Mutex
	down     bool
	starts   int // of services
	captures map[string]int
	bodies   map[string]string // that a key was first used with
	answered map[string]bool   // what services have noted here
}

func (b *bank) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key, amount := r.FormValue("key"), r.FormValue("amount")
	b.mu.Lock()
	defer b.mu.Unlock()
	if r.URL.Path == "/start" {
		if b.starts++; b.refuses(b.starts) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	if b.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if r.URL.Path == "/notes" {
		if r.Method == http.MethodPut {
			b.answered[key] = true
		} else if !b.answered[key] {
			w.WriteHeader(http.StatusNotFound)
		}
		return
	}
	switch first, used := b.bodies[key]; {
	case b.locks && used:
		w.WriteHeader(http.StatusConflict)
	case !b.honoursKeys || !used:
		b.captures[key]++
		b.bodies[key] = amount
	case first != amount:
		w.WriteHeader(http.StatusUnprocessableEntity)
	}
}

func (b *bank) count(_ context.Context, key string) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.captures[key], nil
}

// with is a subject whose handler calls the bank, and answers as the bank does. It first calls before.
func (b *bank) with(before func(ctx context.Context)) Subject {
	return Subject{
		Setup: func(tb testing.TB) map[string]string {
			b.captures, b.bodies, b.answered = map[string]int{}, map[string]string{}, map[string]bool{}
			server := httptest.NewServer(b)
			tb.Cleanup(server.Close)
			return map[string]string{"bank": server.URL}
		},
		Serve: func(_ context.Context, env *Env) error {
			client := &http.Client{Transport: env.RoundTripper("bank", &http.Transport{DisableKeepAlives: true})}
			l, err := env.Listen()
			if err != nil {
				return err
			}
			return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				query := "?key=" + r.FormValue("key") + "&amount=" + r.FormValue("amount")
				ask := func(client *http.Client, method, path string) int {
					req, err := http.NewRequestWithContext(r.Context(), method, env.Setting("bank")+path+query, nil)
					if err != nil {
						panic(err)
					}
					res, err := client.Do(req)
					if err != nil && b.ignored {
						return http.StatusOK
					}
					if err != nil {
						return http.StatusBadGateway
					}
					_ = res.Body.Close()
					return res.StatusCode
				}
				if !b.honoursKeys && ask(http.DefaultClient, http.MethodGet, "/notes") == http.StatusOK {
					return // a repeat
				}
				before(r.Context())
				status := ask(client, http.MethodPost, "/captures")
				if status == http.StatusOK && !b.forgetful {
					ask(http.DefaultClient, http.MethodPut, "/notes")
				}
				w.WriteHeader(status)
			}))
		},
		Request: func(ctx context.Context, c Call) (Answer, error) {
			amount := "1250"
			if c.Other {
				amount = "99"
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL("/pay?key="+c.Key+"&amount="+amount), nil)
			if err != nil {
				return Answer{}, err
			}
			return Send(req)
		},
		Effects: b.count,
		Lease:   300 * time.Millisecond, Session: 300 * time.Millisecond,
		ClientTimeout: 3 * time.Second, // a client that gives up on a busy machine would pay twice
	}
}

func nothing(context.Context) {}

func wantError(t *testing.T, s Subject, text string) {
	t.Helper()
	if report, err := find(t, s); err == nil || !strings.Contains(err.Error(), text) {
		t.Errorf("Find = %v, %v, want an error with %q", report, err, text)
	}
}

func TestAServiceThatPassesTheKeyOnPasses(t *testing.T) {
	t.Parallel()
	s := (&bank{honoursKeys: true}).with(func(ctx context.Context) { Point(ctx, "before the bank") })
	s.Restart = map[string]func(context.Context) error{"bank": func(context.Context) error { return nil }}
	s.Faults = AllFaults // also under -short
	var others atomic.Int64
	request := s.Request
	s.Request = func(ctx context.Context, c Call) (Answer, error) {
		if c.Other {
			others.Add(1)
		}
		return request(ctx, c)
	}
	report := Find(t, s)
	if n := others.Load(); n != 4 {
		t.Errorf("%d requests had another body, want one at each of two processes, at two points", n)
	}
	if len(report.Points) != 2 || !report.Points[0].Mark || report.Points[1].Name != "POST bank/captures" {
		t.Errorf("points %v, want a mark, and a call of the bank", report.Points)
	}
	tried := map[Fault]bool{}
	for _, c := range report.Cases {
		if c.Result != Once {
			t.Errorf("%v, %s: %s %s\n%s", c.Point, c.Fault, c.Result, c.Why, c.Timeline)
		}
		tried[c.Fault] = true
	}
	if len(tried) != 1+len(AllFaults) || len(report.Cases) != 1+len(AllFaults)+len(atMarks) {
		t.Errorf("tried %v in %d cases, want a repeat, all faults at the call, and %v at the mark", tried, len(report.Cases), atMarks)
	}
}

func TestASecondEffectIsFound(t *testing.T) {
	t.Parallel()
	s := (&bank{}).with(nothing)
	s.Faults = []Fault{KilledBefore, KilledAfter, AnswerLost, AnswerLate, ConnectionCut, Stopped, Duplicate}
	report := Find(t, s)
	var failed []Fault
	for _, c := range report.Failures() {
		failed = append(failed, c.Fault)
	}
	if want := []Fault{KilledAfter, AnswerLost, AnswerLate, Stopped, Duplicate}; !slices.Equal(failed, want) {
		t.Errorf("failed %v, want %v", failed, want)
	}
	text := regexp.MustCompile(`\d EFFECTS`).ReplaceAllString(report.String(), "2 EFFECTS") // a busy client may pay more
	for _, want := range []string{
		"1: POST bank/captures  once           2 EFFECTS     2 EFFECTS    2 EFFECTS    once            2 EFFECTS", "FAULT: killed after", "2 effects",
		"CRASHTEST_CASE='killed after: POST bank/captures' go test -C ", "-run '^TestASecondEffectIsFound$'",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, report)
		}
	}
}

func TestASecondEffectElsewhereIsFound(t *testing.T) {
	t.Parallel()
	b := &bank{}
	s := b.with(nothing)
	s.Faults = []Fault{KilledAfter}
	s.OtherEffects = map[string]func(context.Context, string) (int, error){"bank": b.count}
	s.Effects = func(ctx context.Context, key string) (int, error) {
		n, err := b.count(ctx, key)
		return min(n, 1), err
	}
	if failed := Find(t, s).Failures(); len(failed) != 1 || failed[0].Cell != "2 AT bank" {
		t.Errorf("failures %v, want two effects at the bank", failed)
	}
}

func TestAnErrorThatIsIgnoredIsFound(t *testing.T) {
	t.Parallel()
	s := (&bank{ignored: true}).with(nothing)
	s.Faults = []Fault{KilledBefore, ConnectionCut}
	if failed := Find(t, s).Failures(); len(failed) != 1 || failed[0].Fault != ConnectionCut || failed[0].Cell != "untrue" {
		t.Errorf("failures %v, want a success without an effect after a connection was cut", failed)
	}
}

// It is told once, and not at every point.
func TestARepeatThatPaysAgainIsFoundWithoutAFault(t *testing.T) {
	t.Parallel()
	report := Find(t, (&bank{forgetful: true}).with(nothing))
	if failed := report.Failures(); len(failed) != 1 || failed[0].Fault != Repeated || !strings.Contains(report.String(), "FAILED without a fault") {
		t.Errorf("it found %s", report)
	}
}

func TestOneCaseRunsAgain(t *testing.T) {
	t.Setenv(envCase, "killed after: POST bank/captures")
	s := (&bank{}).with(nothing)
	s.Faults = []Fault{Duplicate} // a case of a full run too
	report := Find(t, s)
	if failed := report.Failures(); len(report.Cases) != 1 || len(failed) != 1 || failed[0].Fault != KilledAfter {
		t.Errorf("cases %v", report)
	}
}

func TestACaseThatIsNotThereIsAnError(t *testing.T) {
	t.Setenv(envCase, "killed after: COMMIT")
	wantError(t, (&bank{}).with(nothing), `no case "killed after: COMMIT"`)
}

// It is for a shell, with the environment that decides what go test builds.
func TestTheCommandOfACaseIsQuoted(t *testing.T) {
	t.Setenv("GOWORK", "off")
	t.Setenv("GOFLAGS", "-race -tags=mine")
	c := &Case{Fault: Restarted, Server: "Redis", Point: PointInfo{Number: 3, Name: "SET a = 'b'", Nth: 2}}
	command := (&Report{Test: "TestA/it's"}).command(c)
	want := `GOWORK='off' GOFLAGS='-race -tags=mine' CRASHTEST_CASE='server restarted (Redis): SET a = '\''b'\'' (no. 2)' go test -C '`
	if !strings.HasPrefix(command, want) || !strings.HasSuffix(command, `' -count=1 -v -run '^TestA$/^it'\''s$' .`) {
		t.Errorf("the command is\n%s, want\n%s", command, want)
	}
}

func TestAServiceThatNeverAnswersIsAnError(t *testing.T) {
	t.Parallel()
	s := (&bank{}).with(func(ctx context.Context) { <-ctx.Done() })
	s.Budget = 500 * time.Millisecond
	wantError(t, s, "no success within 500ms")
}

func TestAServiceThatDoesNotStartIsAnError(t *testing.T) {
	t.Parallel()
	s := (&bank{}).with(nothing)
	s.Serve = func(context.Context, *Env) error { return errors.New("no database") }
	wantError(t, s, "no database")
}

func TestASubjectNeedsItsFunctions(t *testing.T) {
	t.Parallel()
	wantError(t, Subject{}, "needs Serve, Request and Effects")
}

func TestEffectsThatCannotBeCountedAreAnError(t *testing.T) {
	t.Parallel()
	for name, effects := range map[string]func(context.Context, string) (int, error){
		"failing": func(context.Context, string) (int, error) { return 0, errors.New("no such table") },
		"of all":  func(context.Context, string) (int, error) { return 3, nil },
		"blind":   func(context.Context, string) (int, error) { return 0, nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := (&bank{}).with(nothing)
			s.Effects = effects
			wantError(t, s, "cannot be counted")
		})
	}
}

func TestAServiceWithoutPointsIsAnError(t *testing.T) {
	t.Parallel()
	s := (&bank{}).with(nothing)
	s.Serve = func(_ context.Context, env *Env) error {
		l, err := env.Listen()
		if err != nil {
			return err
		}
		return http.Serve(l, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			res, err := http.Post(env.Setting("bank")+"?key="+r.FormValue("key"), "", nil)
			if err != nil {
				panic(err)
			}
			_ = res.Body.Close()
		}))
	}
	wantError(t, s, "no point that every run has")
}

func TestPointsThatDifferAreToldAndNotTried(t *testing.T) {
	t.Parallel()
	s := (&bank{honoursKeys: true}).with(func(ctx context.Context) { Point(ctx, "at "+strings.Repeat("x", rand.IntN(1e9)%97+1)) })
	s.Faults = []Fault{KilledBefore}
	report := Find(t, s)
	if len(report.Points) != 1 || len(report.Unstable) < 2 || len(report.Cases) != 2 {
		t.Errorf("points %v, unstable %v, %d cases, want one, two or three, and two", report.Points, report.Unstable, len(report.Cases))
	}
	if !strings.Contains(report.String(), "Not tried, because only some runs have this point: at x") {
		t.Errorf("the report does not tell:\n%s", report)
	}
}

// wantFailed runs one fault, which has to fail for a reason that says nothing about the effects.
func wantFailed(t *testing.T, s Subject, f Fault, cell, why string) {
	t.Helper()
	s.Faults = []Fault{f}
	failed := Find(t, s).Failures()
	if len(failed) != 1 || failed[0].Cell != cell || !strings.Contains(failed[0].Why, why) {
		t.Errorf("failures %v, want %q because of %q", failed, cell, why)
	}
}

// undisturbed is how many runs without a fault come first.
func undisturbed() int {
	if testing.Short() {
		return 3
	}
	return 4
}

func TestARequestThatIsNeverAnsweredAfterAFaultFails(t *testing.T) {
	t.Parallel()
	s := (&bank{locks: true}).with(nothing)
	s.Budget = 3 * time.Second
	wantFailed(t, s, KilledAfter, "no answer", "no final answer within 3s, the last was")
}

func TestEffectsThatCannotBeCountedAfterAFaultFail(t *testing.T) {
	t.Parallel()
	b := &bank{}
	s := b.with(nothing)
	s.Effects = func(ctx context.Context, key string) (int, error) {
		if b.mu.Lock(); len(b.captures) > undisturbed() {
			defer b.mu.Unlock()
			return 0, errors.New("no connection")
		}
		b.mu.Unlock()
		return b.count(ctx, key)
	}
	wantFailed(t, s, KilledBefore, "no count", "no connection")
}

func TestAServerThatDoesNotStartAgainFails(t *testing.T) {
	t.Parallel()
	s := (&bank{honoursKeys: true}).with(nothing)
	s.Restart = map[string]func(context.Context) error{"bank": func(context.Context) error { return errors.New("no space") }}
	wantFailed(t, s, Restarted, noRestart, "bank did not start again: no space")
}

// A start that fails is tried again, because a machine may be busy.
func TestAServiceThatDoesNotStartForACaseFails(t *testing.T) {
	t.Parallel()
	refusing := func(refuses func(start int) bool) Subject {
		s := (&bank{honoursKeys: true, refuses: refuses}).with(nothing)
		serve := s.Serve
		s.Serve = func(ctx context.Context, env *Env) error {
			res, err := http.Get(env.Setting("bank") + "/start")
			if err != nil {
				return err
			}
			if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK {
				return errors.New("no connection")
			}
			return serve(ctx, env)
		}
		return s
	}
	t.Run("once", func(t *testing.T) {
		t.Parallel()
		s := refusing(func(start int) bool { return start == undisturbed()+1 })
		s.Faults = []Fault{KilledBefore}
		if report := Find(t, s); len(report.Failures()) > 0 {
			t.Error(report)
		}
	})
	t.Run("always", func(t *testing.T) {
		t.Parallel()
		wantFailed(t, refusing(func(start int) bool { return start > undisturbed() }), KilledBefore, noStart, "no connection")
	})
}

func TestTheBudgetBeginsWhenTheServerIsBack(t *testing.T) {
	t.Parallel()
	b := &bank{honoursKeys: true}
	s := b.with(nothing)
	s.Faults, s.Budget = []Fault{Restarted}, 3*time.Second
	set := func(down bool) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.down = down
	}
	s.Restart = map[string]func(context.Context) error{"bank": func(ctx context.Context) error {
		set(true)
		pause(ctx, s.Budget+time.Second)
		set(false)
		return nil
	}}
	if report := Find(t, s); len(report.Failures()) > 0 {
		t.Error(report)
	}
}

// failing notes errors in place of the test.
type failing struct {
	testing.TB
	errors []string
}

func (f *failing) Errorf(format string, args ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, args...))
}

func TestRunFailsIfNoFaultWasTried(t *testing.T) {
	t.Parallel()
	s := (&bank{}).with(nothing)
	s.Faults = []Fault{Restarted}
	f := &failing{TB: t}
	if Run(f, s); len(f.errors) != 1 || f.errors[0] != "no fault was tried" {
		t.Errorf("errors %q", f.errors)
	}
}

// It says so, and does not count them as passed.
func TestWhatCannotBeTriedIsLeftOut(t *testing.T) {
	can := canStop
	canStop = false
	t.Cleanup(func() { canStop = can })
	s := (&bank{}).with(nothing)
	s.Faults = []Fault{KilledBefore, Stopped, Restarted}
	text := Find(t, s).String()
	for _, want := range []string{"4 cases", "2 once", "2 left out", "cannot stop a process", "Subject.Restart does not say"} {
		if !strings.Contains(text, want) {
			t.Errorf("the report has no %q:\n%s", want, text)
		}
	}
}

func TestAPointThatIsNotReachedDoesNotPass(t *testing.T) {
	t.Parallel()
	s := (&bank{honoursKeys: true}).with(nothing)
	r := &runner{Subject: s.withDefaults(2), tb: t}
	if InService() {
		serve(t, s)
	}
	r.settings = s.Setup(t)
	defer r.end()
	c := &Case{Point: PointInfo{Number: 1, Name: "nowhere", Nth: 1}, Fault: KilledBefore}
	if r.try(t.Context(), c); c.Result != NotReached {
		t.Errorf("result %q %s, want %q", c.Result, c.Why, NotReached)
	}
}

func TestAnswersAndLedgerAreCompared(t *testing.T) {
	t.Parallel()
	success, success2 := reply{Answer: Answer{Status: 201, Body: "a", Outcome: Success}}, reply{Answer: Answer{Status: 201, Body: "b", Outcome: Success}}
	refusal, doubt := reply{Answer: Answer{Status: 422, Outcome: Refusal}}, reply{Answer: Answer{Status: 409, Outcome: InDoubt}}
	otherWon, otherLost := success2, refusal
	otherWon.other, otherLost.other = true, true
	for _, c := range []struct {
		name    string
		replies []reply
		n       int
		cell    string
	}{
		{"one payment", []reply{success, success}, 1, ""},
		{"two payments", []reply{success, success}, 2, "2 EFFECTS"},
		{"no payment", []reply{success}, 0, "untrue"},
		{"a refusal", []reply{refusal}, 0, ""},
		{"a refusal and a payment", []reply{refusal}, 1, "untrue"},
		{"other answers", []reply{success, success2}, 1, "differs"},
		{"success, then a refusal", []reply{success, refusal}, 1, "differs"},
		{"in doubt, and paid", []reply{doubt}, 1, ""},
		{"in doubt, and not paid", []reply{doubt}, 0, ""},
		{"in doubt, then settled", []reply{doubt, success}, 1, ""},
		{"success, then in doubt", []reply{success, doubt}, 1, "differs"},
		{"the other body was refused", []reply{otherLost, success}, 1, ""},
		{"the other body came first", []reply{otherWon, refusal}, 1, ""},
		{"both bodies were told of success", []reply{success, otherWon}, 1, "both told"},
	} {
		h := &history{replies: c.replies}
		if why, cell := h.contradiction(counts{{"", c.n}}); cell != c.cell {
			t.Errorf("%s: %q, %s, want %q", c.name, cell, why, c.cell)
		}
	}
	if _, cell := (&history{replies: []reply{success}}).contradiction(counts{{"", 1}, {"bank", 2}}); cell != "2 AT bank" {
		t.Errorf("two captures at the bank: %q", cell)
	}
}

func TestStatusSaysTheOutcome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		status int
		body   string
		want   Outcome
	}{
		{200, "", Success}, {201, "", Success}, {400, "", Refusal}, {402, "", Refusal}, {422, "", Refusal},
		{408, "", Again}, {409, `{"code":"in-progress"}`, Again}, {429, "", Again}, {500, "", Again}, {503, "", Again},
		{409, `{"code":"outcome-unknown"}`, InDoubt}, {409, `{"may_have_happened":true}`, InDoubt},
	} {
		if got := byStatus(Answer{Status: c.status, Body: c.body}); got != c.want {
			t.Errorf("%d %s: %v, want %v", c.status, c.body, got, c.want)
		}
	}
}

func TestStatementsAreNamed(t *testing.T) {
	t.Parallel()
	for statement, want := range map[string]string{
		"INSERT INTO payments (a) VALUES ($1)":      "INSERT INTO payments",
		"\n\tinsert into\n \"my\".\"payments\" (a)": "INSERT INTO my.payments",
		"/* from here */ UPDATE keys SET a = 1":     "UPDATE keys",
		"SELECT a, b\nFROM keys WHERE k = 1":        "SELECT FROM keys",
		"DELETE FROM keys":                          "DELETE FROM keys",
		"begin":                                     "BEGIN",
		"commit;":                                   "COMMIT",
		"WITH done AS (UPDATE keys SET x = 1 RETURNING *) SELECT 1":    "UPDATE keys",
		"SAVEPOINT crashtest-abcdefghijklmnop":                         "SAVEPOINT *",
		"SELECT pg_catalog.pg_try_advisory_xact_lock($1) /* 3f2a99 */": "SELECT pg_catalog.pg_try_advisory_xact_lock($1)",
	} {
		if got := StatementName(statement); got != want {
			t.Errorf("%q is named %q, want %q", statement, got, want)
		}
	}
}
