package operate_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/internal/operate"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// settling is a store in which attempts are settled.
type settling struct {
	operate.Settler

	t      *testing.T
	locker *memorylock.Locker
}

func newSettling(t *testing.T) *settling {
	t.Helper()
	s := &settling{t: t, locker: memorylock.New()}
	s.Store = memorystore.New()
	engine, err := idem.New(s.locker, s.Store)
	if err != nil {
		t.Fatal(err)
	}
	s.Settler.Settle = func(context.Context, driver.KeyID, *driver.Record) (operate.Settle, error) {
		return operate.UnderLock(engine), nil
	}
	s.Policy = func(string) idem.Policy { return idem.Policy{AllowGlobalKeys: true} }
	return s
}

// doubt leaves a new attempt of a key in doubt.
func (s *settling) doubt(key idem.Key, answer *driver.Response) *operate.Doubt {
	s.t.Helper()
	id, nonce, ctx := idem.NewKeyID("m", key), driver.NewNonce(), s.t.Context()
	lease, err := s.locker.TryAcquire(ctx, driver.LockRequest{KeyID: id, Nonce: nonce})
	if err != nil {
		s.t.Fatal(err)
	}
	fp, err := idem.NewFingerprint(idem.FingerprintVersion, "test")
	if err != nil {
		s.t.Fatal(err)
	}
	res, err := s.Store.Begin(ctx, id, driver.BeginRequest{Route: "POST /pay", Fence: lease.Fence(), Nonce: nonce, Fingerprint: fp, KeyTTL: time.Hour})
	if err != nil || !res.Begun {
		s.t.Fatalf("Begin() = %+v, %v", res, err)
	}
	a := res.Record.Attempt
	done, err := s.Store.Settle(ctx, id, driver.Settlement{Attempt: a, ID: nonce, State: driver.StateUnknown, Response: answer})
	if err != nil || !done.Settled {
		s.t.Fatalf("Settle() = %+v, %v", done, err)
	}
	if err := lease.Release(ctx); err != nil {
		s.t.Fatal(err)
	}
	return &operate.Doubt{ID: id, Attempt: a, Route: "POST /pay", Digest: operate.AnswerDigest(&done.Record)}
}

func (s *settling) want(want operate.Outcome, detail string, d *operate.Doubt, v operate.Verdict, by string) {
	s.t.Helper()
	got := s.Decide(s.t.Context(), d, &v, driver.Decision{By: by, Reason: "r"})
	text := got.Detail
	if got.Err != nil {
		text = got.Err.Error()
	}
	if got.Outcome != want || !strings.Contains(text, detail) {
		s.t.Errorf("Decide() = %+v, want %s and %q", got, want, detail)
	}
}

// with answers with a body.
func with(body string) operate.Verdict {
	return operate.Verdict{Applied: true, Answer: func(string) (*idem.Response, error) {
		return &idem.Response{Status: 201, Body: []byte(body)}, nil
	}}
}

var kept, not = operate.Verdict{Applied: true, Kept: true}, operate.Verdict{}

func TestDecideComparesTheWholeAttempt(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(a *driver.Attempt){
		"number": func(a *driver.Attempt) { a.Number++ }, "nonce": func(a *driver.Attempt) { a.Nonce = driver.NewNonce() },
		"fence": func(a *driver.Attempt) { a.Fence.Token++ }, "domain": func(a *driver.Attempt) { a.Fence.Domain += "x" },
	} {
		s := newSettling(t)
		d := s.doubt("k", nil)
		change(&d.Attempt)
		s.want(operate.Changed, "attempt 1 is unknown since", d, not, "ada")
		if rec, err := s.Store.Get(t.Context(), d.ID); err != nil || rec.State != driver.StateUnknown {
			t.Errorf("another %s: record = %+v, %v, want it in doubt", name, rec, err)
		}
	}
}

// An attempt that ends and another one that begins between the look and the lock are noticed under the
// lock.
func TestDecideComparesAgainUnderTheLock(t *testing.T) {
	t.Parallel()
	s := newSettling(t)
	d := s.doubt("k", nil)
	settle := s.Settler.Settle
	s.Settler.Settle = func(ctx context.Context, id driver.KeyID, rec *driver.Record) (operate.Settle, error) {
		res, err := s.Store.Settle(ctx, id, driver.Settlement{Attempt: d.Attempt, ID: driver.NewNonce(), State: driver.StateReleased, Decision: driver.Decision{By: "bob"}})
		if err != nil || !res.Settled {
			t.Fatalf("Settle() = %+v, %v", res, err)
		}
		s.doubt("k", nil)
		return settle(ctx, id, rec)
	}
	s.want(operate.Changed, "attempt 2 is unknown", d, with("a"), "ada")
	if rec, err := s.Store.Get(t.Context(), d.ID); err != nil || rec.State != driver.StateUnknown {
		t.Errorf("record = %+v, %v, want attempt 2 in doubt", rec, err)
	}
}

func TestDecideTellsWhatStands(t *testing.T) {
	t.Parallel()
	s := newSettling(t)
	d := s.doubt("k", nil)
	s.want(operate.Settled, "", d, with("a"), "ada")
	s.want(operate.Already, "by ada", d, with("a"), "ada")
	s.want(operate.Already, "by ada", d, with("a"), "bob")
	s.want(operate.Changed, "completed since", d, with("b"), "ada")
	s.want(operate.Changed, "completed since", d, not, "ada")

	d = s.doubt("again", nil)
	s.want(operate.Settled, "", d, not, "ada")
	s.want(operate.Already, "released since", d, not, "ada")
	second := s.doubt("again", nil)
	s.want(operate.Already, "now attempt 2 is unknown", d, not, "ada")
	s.want(operate.Changed, "attempt 2 is unknown", d, with("a"), "ada")
	s.want(operate.Settled, "", second, with("a"), "ada")

	d = s.doubt("by-resolver", nil)
	if res, err := s.Store.Settle(t.Context(), d.ID, driver.Settlement{Attempt: d.Attempt, ID: driver.NewNonce(), State: driver.StateReleased, Decision: driver.Decision{By: "resolver"}}); err != nil || !res.Settled {
		t.Fatalf("Settle() = %+v, %v", res, err)
	}
	s.want(operate.Changed, "by resolver", d, not, "ada")
	s.want(operate.Changed, "there is no record", &operate.Doubt{ID: idem.NewKeyID("m", "none"), Attempt: d.Attempt}, not, "ada")
}

func TestDecideOnKeptAnswers(t *testing.T) {
	t.Parallel()
	s := newSettling(t)
	d := s.doubt("k", &driver.Response{Status: 201, Body: []byte("kept"), Span: driver.Span{SpanID: [8]byte{1}}})
	other := *d
	other.Digest = "sha256:0"
	s.want(operate.Failed, "another answer is kept", &other, kept, "ada")
	s.want(operate.Settled, "", d, kept, "ada")
	s.want(operate.Already, "", d, kept, "ada")
	s.want(operate.Changed, "", &other, kept, "ada")
	if rec, err := s.Store.Get(t.Context(), d.ID); err != nil || string(rec.Response.Body) != "kept" {
		t.Errorf("record = %+v, %v, want the kept answer", rec, err)
	}
	s.want(operate.Failed, "no answer is kept", s.doubt("none", nil), kept, "ada")
	s.want(operate.Failed, "too long", s.doubt("omitted", &driver.Response{Status: 201, Omitted: true}), kept, "ada")
	for _, status := range []int{402, 408, 499, 500, 503, 13, 5} {
		s.want(operate.Failed, "does not tell clients", s.doubt(idem.Key("s"+string(rune(status))), &driver.Response{Status: status}), kept, "ada")
	}
}

// A server that does not answer is told as a failure. The decision may have been made, and the same
// one can be sent again.
func TestDecideAfterALostReply(t *testing.T) {
	t.Parallel()
	s := newSettling(t)
	d := s.doubt("k", nil)
	faulty := idemtest.NewFaultyStore(s.Store)
	for call := range 100 {
		faulty.LoseReply("Settle", call+1, nil)
	}
	engine, err := idem.New(s.locker, faulty, idem.WithSettleTimeout(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	s.Settler.Settle = func(context.Context, driver.KeyID, *driver.Record) (operate.Settle, error) {
		return operate.UnderLock(engine), nil
	}
	s.want(operate.Failed, "unavailable", d, not, "ada")
	s.want(operate.Already, "", d, not, "ada")
}
