package operate_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	"github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

var resolver = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.StillUnknown(), nil })

func TestStory(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC)
	leave, ask, again := &idem.Policy{}, &idem.Policy{InDoubt: resolver}, &idem.Policy{InDoubt: idem.RunAgain()}
	process := driver.Holder{Host: "pay-1", PID: 7}
	tests := []struct {
		name   string
		state  driver.State
		err    error
		lock   operate.Lock
		holder driver.Holder
		policy *idem.Policy

		wantHolder, wantNext, wantSettle string // parts; "" stands for nothing at all
	}{
		{"handler runs", driver.StatePending, nil, operate.LockOfAttempt, process, ask, "alive: pay-1 (process 7)", "when the handler ends", ""},
		{"transaction runs", driver.StatePending, nil, operate.LockOfAttempt, driver.Holder{}, nil, "alive: a transaction", "when the handler ends", ""},
		{"interrupted, resolver", driver.StatePending, nil, operate.LockFree, driver.Holder{}, ask, "gone", "asks the route's resolver.", "record resolve"},
		{"interrupted, runs again", driver.StatePending, nil, operate.LockFree, driver.Holder{}, again, "gone", "runs the handler again", "record resolve"},
		{"interrupted, left", driver.StatePending, nil, operate.LockFree, driver.Holder{}, leave, "gone", "a person has to", "record resolve"},
		{"interrupted, policy not known", driver.StatePending, nil, operate.LockFree, driver.Holder{}, nil, "gone", "if it has one", "record resolve"},
		{"being resolved", driver.StatePending, nil, operate.LockOfOther, process, ask, "gone: pay-1 (process 7)", "settles it now", "record resolve"},
		{"lock elsewhere", driver.StatePending, nil, operate.LockElsewhere, driver.Holder{}, ask, "domain old'domain", "retired", `store retire 'old'\''domain' --reason`},
		{"no lock service", driver.StatePending, nil, operate.LockUnknown, driver.Holder{}, ask, "does not answer", "Not known", "record resolve"},
		{"unknown, resolver", driver.StateUnknown, nil, operate.LockFree, driver.Holder{}, ask, "ended: no process", "again. If it never knows", "record resolve"},
		{"unknown, left", driver.StateUnknown, nil, operate.LockFree, driver.Holder{}, leave, "ended", "A person has to settle it. Repeats are refused", "record resolve"},
		{"unknown, policy not known", driver.StateUnknown, nil, operate.LockFree, driver.Holder{}, nil, "ended", "unless the route has a resolver", "record resolve"},
		{"unknown, runs again", driver.StateUnknown, nil, operate.LockFree, driver.Holder{}, again, "ended", "runs the handler again", "record resolve"},
		{"unknown, held", driver.StateUnknown, nil, operate.LockOfOther, process, leave, "pay-1", "may settle it now. A person", "record resolve"},
		{"unknown elsewhere", driver.StateUnknown, nil, operate.LockElsewhere, driver.Holder{}, leave, "domain", "person", "record resolve"},
		{"completed", driver.StateCompleted, nil, operate.LockNotAsked, driver.Holder{}, leave, "", "Repeats get the stored response until 2026-11-24", ""},
		{"expired", driver.StateExpired, nil, operate.LockNotAsked, driver.Holder{}, leave, "", "forgotten", ""},
		{"released", driver.StateReleased, nil, operate.LockNotAsked, driver.Holder{}, leave, "", "next request with the key runs the handler again. If the route charges, that request charges. Without a request", ""},
		{"issued and tried", driver.StateIssued, nil, operate.LockNotAsked, driver.Holder{}, leave, "", "If the route charges, that request charges. Its token is good until 2026-11-23 04", ""},
		{"issued", driver.StateIssued, nil, operate.LockNotAsked, driver.Holder{}, leave, "", "first use until", ""},
		{"newer", driver.StateNone, fmt.Errorf("x: %w", driver.ErrNewerRecord), operate.LockNotAsked, driver.Holder{}, nil, "", "newer build", ""},
		{"corrupt", driver.StateNone, driver.ErrCorruptRecord, operate.LockNotAsked, driver.Holder{}, nil, "", "No build can read", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			at := now.Add(-90 * time.Second)
			f := operate.Facts{Now: now, Lock: tt.lock, Holder: tt.holder, Policy: tt.policy, OpenRecord: driver.OpenRecord{Err: tt.err, Record: driver.Record{
				State: tt.state, Attempt: driver.Attempt{Number: 3, Fence: driver.Fence{Domain: "old'domain"}},
				Created: at, Started: at, Settled: at, ResultExpires: now.Add(24 * time.Hour), KeyExpires: now.Add(48 * time.Hour), TokenExpires: now.Add(time.Hour)}}}
			if tt.name == "issued" {
				f.Record.Attempt = driver.Attempt{}
			}
			s := f.Story()
			for _, part := range []struct{ name, got, want string }{{"holder", s.Holder, tt.wantHolder}, {"next", s.Next, tt.wantNext}, {"settle", s.Settle, tt.wantSettle}} {
				if !strings.Contains(part.got, part.want) || (part.got == "") != (part.want == "") {
					t.Errorf("%s = %q, want %q in it", part.name, part.got, part.want)
				}
			}
			if tt.wantSettle == "record resolve" && !strings.Contains(s.Settle, "--attempt 3 ") {
				t.Errorf("settle = %q, want the attempt in it", s.Settle)
			}
			if want := 90 * time.Second; tt.state != driver.StateExpired && s.Age != want {
				t.Errorf("age = %v, want %v", s.Age, want)
			}
		})
	}
}

// The facts follow the lock of a real attempt.
func TestLookFollowsTheLock(t *testing.T) {
	t.Parallel()
	store, locker := memorystore.New(), memorylock.New()
	look := operate.Looker{Store: store, Locks: func(*driver.Record) driver.LockInspector { return locker }}
	id := idem.NewKeyID("m", "k")
	nonce := driver.NewNonce()
	lease, err := locker.TryAcquire(t.Context(), driver.LockRequest{KeyID: id, Nonce: nonce})
	if err != nil {
		t.Fatal(err)
	}
	fp, err := idem.NewFingerprint(idem.FingerprintVersion, "test")
	if err != nil {
		t.Fatal(err)
	}
	begin := driver.BeginRequest{Fence: lease.Fence(), Nonce: nonce, Fingerprint: fp, KeyTTL: time.Hour}
	if res, err := store.Begin(t.Context(), id, begin); err != nil || !res.Begun {
		t.Fatalf("Begin() = %+v, %v", res, err)
	}
	want := func(lock operate.Lock, retired bool) {
		t.Helper()
		f, err := look.Get(t.Context(), id)
		if err != nil || f.Lock != lock || f.Retired != retired {
			t.Errorf("Get() = %+v, %v, want lock %v, retired %v", f, err, lock, retired)
		}
	}
	want(operate.LockOfAttempt, false)
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	want(operate.LockFree, false)
	other, err := locker.TryAcquire(t.Context(), driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
	if err != nil {
		t.Fatal(err)
	}
	want(operate.LockOfOther, false)
	if err := other.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := lease.Fence().Domain
	locker = memorylock.New() // the locks were replaced
	want(operate.LockElsewhere, false)
	if err := store.RetireDomain(t.Context(), before, driver.Decision{By: "ada"}); err != nil {
		t.Fatal(err)
	}
	want(operate.LockFree, true)

	if found, ok, err := look.FindOperation(t.Context(), id.OperationID()); !ok || err != nil || found != id {
		t.Errorf("FindOperation() = %v, %v, %v, want %v", found, ok, err, id)
	}
	if _, ok, err := look.FindOperation(t.Context(), "op_0"); ok || err != nil {
		t.Errorf("FindOperation() of an unknown one = %v, %v", ok, err)
	}
}

func TestCheckDecision(t *testing.T) {
	t.Parallel()
	tests := []struct {
		by, reason, want string
	}{
		{"ada", "because", ""},
		{"", "", "NAME is empty"},
		{" Sweeper ", "", "NAME  Sweeper  names a part"},
		{strings.Repeat("a", 129), "", "NAME has 129 bytes"},
		{"ada", strings.Repeat("a", 513), "WHY has 513 bytes"},
		{"ada", "\xff", "not UTF-8"},
	}
	for _, tt := range tests {
		err := operate.CheckDecision(driver.Decision{By: tt.by, Reason: tt.reason}, "NAME", "WHY")
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("CheckDecision(%q, %.20q) = %v, want %q", tt.by, tt.reason, err, tt.want)
		}
	}
}

func TestCheckJSON(t *testing.T) {
	t.Parallel()
	tests := []struct{ contentType, body, want string }{
		{"application/json", `{"id":"pay_1"}`, ""},
		{"application/json; charset=utf-8", `{"id":"pay_1"`, "unexpected end"},
		{"application/problem+json", "It is paid.", "invalid character 'I'"},
		{"application/json", `{} {}`, "after top-level value"},
		{"text/plain", "It is paid.", ""},
		{"", "It is paid.", ""},
	}
	for _, tt := range tests {
		err := operate.CheckJSON(tt.contentType, []byte(tt.body))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("CheckJSON(%q, %q) = %v, want %q", tt.contentType, tt.body, err, tt.want)
		}
	}
}

func TestBrief(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{12 * time.Millisecond: "12ms", 5 * time.Second: "5s", 192 * time.Second: "3m12s",
		2 * time.Minute: "2m", 100 * time.Second: "1m40s", 10 * time.Minute: "10m", 26*time.Hour + 5*time.Minute: "1d2h", 3*time.Hour + 2*time.Minute: "3h2m"} {
		if got := operate.Brief(d); got != want {
			t.Errorf("Brief(%v) = %q, want %q", d, got, want)
		}
	}
}
