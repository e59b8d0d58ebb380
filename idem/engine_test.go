package idem_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

func TestRepeatGetsTheFirstOutcome(t *testing.T) {
	b := setup(t, parts{})
	b.wantPayment("k", "a", 1, false)
	for range 3 {
		b.wantPayment("k", "a", 1, true)
	}
	b.wantRuns(1)
	b.wantState("k", driver.StateCompleted)
}

func TestOtherKeysAndScopesAreOtherOperations(t *testing.T) {
	b := setup(t, parts{})
	_, _ = b.do("k", "a")
	b.wantPayment("k2", "a", 2, false)
	op := b.operation("k", "a")
	op.Scope = "m2"
	res, err := b.engine.Do(context.Background(), op, b.pay)
	b.wantPaid(res, err, 3, false)
}

func TestAnotherRequestUnderTheKeyIsRefused(t *testing.T) {
	b := setup(t, parts{})
	_, _ = b.do("k", "a")
	b.wantRefusal("k", "b", idem.CodeKeyReused)
	// The same request over another transport is another one.
	op := b.operation("k", "a")
	op.Transport, op.Fingerprint = idem.TransportGRPC, fingerprintOf("grpc", "a")
	_, err := b.engine.Do(context.Background(), op, b.pay)
	b.wantRefused(err, idem.CodeKeyReused)
	b.wantRuns(1)
}

func TestIssuedTokenIsConsumedOnce(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens = true }})
	token, err := b.engine.IssueToken(context.Background(), "m1", 0)
	if err != nil || token.ExpiresAt.IsZero() {
		t.Fatalf("IssueToken() = %v, %v", token, err)
	}
	key := string(token.Value)
	b.wantState(key, driver.StateIssued)
	b.wantPayment(key, "a", 1, false)
	b.wantPayment(key, "a", 1, true)
	b.wantRefusal(key, "b", idem.CodeKeyReused)
}

func TestKindsOfKeyDoNotMix(t *testing.T) {
	b := setup(t, parts{})
	token, err := b.engine.IssueToken(context.Background(), "m1", 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.do(string(token.Value), "a")
	b.wantRefused(err, idem.CodeKeyReused)
	b.wantState(string(token.Value), driver.StateIssued)

	_, _ = b.do("client", "a")
	b.policy.IssuedTokens = true
	b.wantRefusal("client", "a", idem.CodeTokenUnknown)
	b.wantRefusal("made-up", "a", idem.CodeTokenUnknown)
	op := b.operation(string(token.Value), "a")
	op.Scope = "m2"
	_, err = b.engine.Do(context.Background(), op, b.pay)
	b.wantRefused(err, idem.CodeTokenUnknown)
	b.wantRuns(1)
}

func TestReleasedTokenIsIssuedAgain(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens = true }})
	token, _ := b.engine.IssueToken(context.Background(), "m1", time.Hour)
	key := string(token.Value)
	b.wantAnswer(key, "a", 429)
	if got := b.wantState(key, driver.StateIssued); !got.ExpiresAt.Equal(token.ExpiresAt) {
		t.Errorf("expiry = %v, want the old one, %v", got.ExpiresAt, token.ExpiresAt)
	}
	b.wantPayment(key, "b", 1, false)
}

func TestExecutionContext(t *testing.T) {
	b := setup(t, parts{})
	var first idem.Execution
	var down, other string
	look := func(ctx context.Context) (idem.Response, error) {
		x, ok := idem.FromContext(ctx)
		if !ok || x.Fence.Domain == "" || x.Fence.Token == 0 || x.OperationID != x.KeyID.OperationID() {
			t.Errorf("FromContext() = %+v, %t", x, ok)
		}
		if left, err := idem.CheckOwner(ctx); err != nil || left <= 0 {
			t.Errorf("CheckOwner() = %v, %v", left, err)
		}
		first, down, other = x, derived(ctx, t, "capture"), derived(ctx, t, "refund")
		idem.NoEffect(ctx)
		return idem.Response{Status: 500}, nil
	}
	_, _ = b.doWith("k", "a", look)
	before, key := first, down
	_, _ = b.doWith("k", "a", look)
	if first.OperationID != before.OperationID || down != key {
		t.Errorf("operation %q and key %q changed to %q and %q between attempts", before.OperationID, key, first.OperationID, down)
	}
	if first.Attempt != 2 || !before.Fence.Before(first.Fence) {
		t.Errorf("second attempt = %+v after %+v", first, before)
	}
	if other == down || len(down) != 36 {
		t.Errorf("DownstreamKey = %q and %q, want two different UUIDs", down, other)
	}
	if _, err := idem.CheckOwner(context.Background()); !errors.Is(err, idem.ErrNoExecution) {
		t.Errorf("CheckOwner outside = %v, want %v", err, idem.ErrNoExecution)
	}
	if key, err := idem.DownstreamKey(context.Background(), "capture"); key != "" || !errors.Is(err, idem.ErrNoExecution) {
		t.Errorf("DownstreamKey outside = %q, %v, want %v", key, err, idem.ErrNoExecution)
	}
}

// TestEachAttemptHasANonceOfItsOwn, by which a store tells a request that was sent twice from
// two requests. The answer names its key.
func TestEachAttemptHasANonceOfItsOwn(t *testing.T) {
	b := setup(t, parts{})
	seen := map[driver.Nonce]bool{{}: true}
	for _, key := range []string{"k1", "k2", "k3"} {
		id := idem.NewKeyID("m1", idem.Key(key))
		res, err := b.do(key, "a")
		if err != nil || res.KeyID != id {
			t.Errorf("Do() = %+v, %v, want key %v", res, err, id)
		}
		rec, err := b.store.Get(t.Context(), id)
		if err != nil || seen[rec.Attempt.Nonce] {
			t.Errorf("Get() = %+v, %v, want a nonce that is new", rec.Attempt, err)
		}
		seen[rec.Attempt.Nonce] = true
	}
}

// TestPingTellsWhichPartFails: the error names the lock service, the token store, or both.
func TestPingTellsWhichPartFails(t *testing.T) {
	b := setup(t, parts{})
	if err := b.engine.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v", err)
	}
	down := errors.New("down")
	b.faults.FailBefore("Ping", idemtest.Every, down)
	if err := b.engine.Ping(t.Context()); !errors.Is(err, down) || strings.Contains(err.Error(), "lock service") || !strings.Contains(err.Error(), "token store") {
		t.Errorf("Ping() = %v, want the store's error alone", err)
	}
	if err := b.engine.PingLock(t.Context()); err != nil {
		t.Errorf("PingLock() = %v", err)
	}
	b.locks.FailBefore("Ping", idemtest.Every, driver.ErrUnavailable)
	if err := b.engine.Ping(t.Context()); !errors.Is(err, down) || !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "lock service") {
		t.Errorf("Ping() = %v, want both errors", err)
	}
	if err := b.engine.PingLock(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("PingLock() = %v, want %v", err, driver.ErrUnavailable)
	}
}

// TestTokenThatCannotBeIssued: the client is told why, in a code.
func TestTokenThatCannotBeIssued(t *testing.T) {
	b := setup(t, parts{})
	refused := func(ttl time.Duration, code idem.Code) {
		t.Helper()
		token, err := b.engine.IssueToken(t.Context(), "m1", ttl)
		b.wantRefused(err, code)
		if token != (idem.Token{}) {
			t.Errorf("IssueToken() = %+v with an error, want no token", token)
		}
	}
	refused(-1, idem.CodeInternal)
	if token, err := idem.IssueToken(t.Context(), b.store, "m1", -1); err == nil {
		t.Errorf("IssueToken() = %+v for less than no time, want an error", token)
	}
	b.faults.FailBefore("Issue", 1, nil)
	refused(time.Minute, idem.CodeUnavailable)
	if err := b.engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused(0, idem.CodeUnavailable)
}
