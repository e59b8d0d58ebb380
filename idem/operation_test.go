package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// direct is an operation of a queue consumer.
func (b *bundle) direct(key, body string) idem.Operation {
	op := b.operation(key, body)
	op.Transport, op.Fingerprint = idem.TransportDirect, fingerprintOf("direct", body)
	return op
}

// An incomplete policy gets its defaults, because a zero time to live would
// lose the result as soon as it is stored.
func TestDoAppliesThePolicysDefaults(t *testing.T) {
	b := setup(t, parts{})
	policy := idem.Policy{Name: "settle", InDoubt: idem.LeaveUnknown()}
	op := b.direct("k1", "{}")
	op.Policy = &policy
	res, err := b.engine.Do(t.Context(), op, b.pay)
	b.wantPaid(res, err, 1, false)
	st := b.wantState("k1", driver.StateCompleted)
	if kept := st.ExpiresAt.Sub(st.Since); kept != idem.DefaultResultTTL {
		t.Errorf("the result is kept for %v, want %v", kept, idem.DefaultResultTTL)
	}
	res, err = b.engine.Do(t.Context(), op, b.pay)
	b.wantPaid(res, err, 1, true)
	if policy.ResultTTL != 0 {
		t.Errorf("Do() changed the caller's policy: %+v", policy)
	}
}

func TestResolveAndDecideApplyThePolicysDefaults(t *testing.T) {
	paid := created(7)
	for name, settle := range map[string]func(b *bundle, id driver.KeyID) (driver.Record, error){
		"Resolve": func(b *bundle, id driver.KeyID) (driver.Record, error) {
			return b.engine.Resolve(b.Context(), id, &idem.Policy{InDoubt: resolverSays(idem.Applied(paid))})
		},
		"Decide": func(b *bundle, id driver.KeyID) (driver.Record, error) {
			return b.engine.Decide(b.Context(), id, driver.Attempt{}, idem.Applied(paid), driver.Decision{By: "ops"}, &idem.Policy{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			if _, err := b.doWith("k1", "{}", func(context.Context) (idem.Response, error) { return idem.Response{}, errors.New("no answer") }); err == nil {
				t.Fatal("Do() = nil, want the handler's error")
			}
			rec, err := settle(b, idem.NewKeyID("m1", "k1"))
			if err != nil || rec.State != driver.StateCompleted {
				t.Fatalf("%s() = %v, %v, want completed", name, rec.State, err)
			}
			if kept := rec.ResultExpires.Sub(rec.Settled); kept != idem.DefaultResultTTL {
				t.Errorf("the result is kept for %v, want %v", kept, idem.DefaultResultTTL)
			}
			_, err = settle(b, idem.NewKeyID("m1", "other"))
			if !errors.Is(err, idem.ErrNotOpen) {
				t.Errorf("%s() of an unused key = %v, want %v", name, err, idem.ErrNotOpen)
			}
		})
	}
}

// The engine refuses a wrong operation before it consumes the key.
func TestOperationThatIsWrongIsRefusedAtOnce(t *testing.T) {
	noSum := func(uint8) (driver.Fingerprint, error) {
		return driver.Fingerprint{Version: idem.FingerprintVersion}, nil
	}
	for name, spoil := range map[string]func(*idem.Operation){
		"zero fingerprint": func(op *idem.Operation) {
			op.Fingerprint = func(uint8) (driver.Fingerprint, error) { return driver.Fingerprint{}, nil }
		},
		"no fingerprint":                 func(op *idem.Operation) { op.Fingerprint = nil },
		"no policy":                      func(op *idem.Operation) { op.Policy = nil },
		"fingerprint without a sum":      func(op *idem.Operation) { op.Fingerprint = noSum },
		"fingerprint of another version": func(op *idem.Operation) { op.Fingerprint = otherVersion },
		"policy with a negative time": func(op *idem.Operation) {
			op.Policy = &idem.Policy{ResultTTL: -time.Second, InDoubt: idem.LeaveUnknown()}
		},
		"token route that fails open": func(op *idem.Operation) {
			op.Policy = &idem.Policy{IssuedTokens: true, FailOpen: true, InDoubt: idem.LeaveUnknown()}
		},
		"no scope": func(op *idem.Operation) { op.Policy, op.Scope = &idem.Policy{}, "" },
		"scope that is not in this context": func(op *idem.Operation) {
			op.Policy, op.Scope = &idem.Policy{Scope: noScope, InDoubt: idem.LeaveUnknown()}, ""
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			op := b.direct("k1", "{}")
			spoil(&op)
			_, err := b.engine.Do(t.Context(), op, b.pay)
			b.wantRefused(err, idem.CodeInternal)
			b.wantState("k1", driver.StateNone)
			b.wantRuns(0)
		})
	}
}

// Callers of Do may make the key themselves, without ParseKey.
func TestOperationWithAKeyOfWrongLengthTouchesNothing(t *testing.T) {
	for key, code := range map[string]idem.Code{"": idem.CodeKeyMissing, strings.Repeat("k", idem.MaxKeyBytes+1): idem.CodeKeyInvalid} {
		b := setup(t, parts{})
		_, err := b.engine.Do(t.Context(), b.direct(key, "{}"), b.pay)
		b.wantRefused(err, code)
		if n := b.faults.Calls("Get"); n != 0 {
			t.Errorf("key of %d bytes: the store was asked %d times, want 0", len(key), n)
		}
		b.wantRuns(0)
		res, err := b.engine.Do(t.Context(), b.direct(strings.Repeat("k", idem.MaxKeyBytes), "{}"), b.pay)
		if err != nil || res.Replayed {
			t.Errorf("Do() with the longest key = %+v, %v, want an execution", res, err)
		}
	}
}

// A fingerprinter may say why it refuses a request.
func TestFingerprintThatCannotBeMade(t *testing.T) {
	boom := errors.New("boom")
	for err, code := range map[error]idem.Code{boom: idem.CodeBodyInvalid, idem.NewRefusal(idem.CodeBodyTooLarge, boom): idem.CodeBodyTooLarge} {
		b := setup(t, parts{})
		op := b.direct("k1", "{}")
		op.Fingerprint = func(uint8) (driver.Fingerprint, error) { return driver.Fingerprint{}, err }
		_, err := b.engine.Do(t.Context(), op, b.pay)
		b.wantRefused(err, code)
		if !errors.Is(err, boom) {
			t.Errorf("Do() = %v, want one that wraps %v", err, boom)
		}
		b.wantRuns(0)
	}
}

// A lock that other instances share over records that they cannot see would let each of them run a key, so it
// takes a promise that there is one instance.
func TestNewRefusesWhatCannotWork(t *testing.T) {
	lock, store, book := memorylock.New(), memorystore.New(), newBook()
	for name, tt := range map[string]struct {
		lock  driver.Locker
		store driver.Store
		opt   idem.Option
		works bool
	}{
		"no locker":                               {nil, store, nil, false},
		"no store":                                {lock, nil, nil, false},
		"a shared lock for a shared store":        {seen{Locker: lock}, seen{Store: store}, nil, true},
		"a shared lock for private records":       {seen{Locker: lock}, store, nil, false},
		"the same, with a single instance":        {seen{Locker: lock}, store, idem.WithSingleInstance(), true},
		"a private lock for a shared store":       {lock, seen{Store: store}, nil, false},
		"also with a single instance":             {lock, seen{Store: store}, idem.WithSingleInstance(), false},
		"no store time-out":                       {lock, store, idem.WithStoreTimeout(0), false},
		"no lock time-out":                        {lock, store, idem.WithLockTimeout(0), false},
		"no settle time-out":                      {lock, store, idem.WithSettleTimeout(0), false},
		"a negative time of long-running":         {lock, store, idem.WithLongRunning(-1), false},
		"a negative number of retries":            {lock, store, idem.WithConflictRetries(-1), false},
		"a negative limit of open executions":     {lock, store, idem.WithMaxOpenExecutionsPerScope(-1), false},
		"no duplicate of a key may wait":          {lock, store, idem.WithMaxWaiting(0, 1), false},
		"no duplicate of a scope may wait":        {lock, store, idem.WithMaxWaiting(1, 0), false},
		"no option, and no observer in an option": {lock, store, idem.WithObserver(nil), true},
	} {
		e, err := idem.New(tt.lock, tt.store, nil, tt.opt)
		if (err == nil) != tt.works || (e != nil) != tt.works {
			t.Errorf("%s: New() = %v, %v, want an engine: %t", name, e, err, tt.works)
		}
		if name == "a shared lock for private records" && !strings.Contains(fmt.Sprint(err), "WithSingleInstance") {
			t.Errorf("%s: New() = %v, want an error that names WithSingleInstance", name, err)
		}
		if tt.opt != nil && tt.lock == driver.Locker(lock) && tt.store == driver.Store(store) {
			e, err = idem.NewJoined(book, tt.opt)
			if (err == nil) != tt.works || (e != nil) != tt.works {
				t.Errorf("%s: NewJoined() = %v, %v, want an engine: %t", name, e, err, tt.works)
			}
		}
	}
	if e, err := idem.NewJoined(nil); e != nil || err == nil {
		t.Errorf("NewJoined(nil) = %v, %v, want an error", e, err)
	}
}

// A success is never in doubt because of its status.
func TestPolicyDoubtsNoSuccess(t *testing.T) {
	for status, ok := range map[int]bool{409: true, 10: true, 0: false, 200: false, 303: false} {
		if _, err := (idem.Policy{AllowGlobalKeys: true, StatusesInDoubt: []int{status}, InDoubt: idem.LeaveUnknown()}).WithDefaults(); (err == nil) != ok {
			t.Errorf("StatusesInDoubt of %d: WithDefaults() = %v, want it accepted: %t", status, err, ok)
		}
	}
}

// seen is a locker or a store that other processes can see.
type seen struct {
	driver.Locker
	driver.Store
}

func (seen) Visibility() driver.Visibility { return driver.VisibilityShared }
func (seen) Ping(context.Context) error    { return nil }

func otherVersion(uint8) (driver.Fingerprint, error) {
	fp, err := idem.NewFingerprint(idem.FingerprintVersion, "settle")
	fp.Version++
	return fp, err
}

func noScope(context.Context) (string, error) { return "", errors.New("not signed in") }

type tenantKey struct{}

// The scope comes from the operation; where that has none the policy is asked.
func TestScopeOfAnOperation(t *testing.T) {
	b := setup(t, parts{})
	b.policy.Scope = func(ctx context.Context) (string, error) { return ctx.Value(tenantKey{}).(string), nil }
	op := b.direct("k1", "{}")
	op.Scope = ""
	res, err := b.engine.Do(context.WithValue(t.Context(), tenantKey{}, "m1"), op, b.pay)
	b.wantPaid(res, err, 1, false)
	b.wantState("k1", driver.StateCompleted) // of m1
	op.Scope = "m1"
	res, err = b.engine.Do(t.Context(), op, b.pay)
	b.wantPaid(res, err, 1, true)

	op.Scope, op.Policy = "", &idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}
	res, err = b.engine.Do(t.Context(), op, b.pay)
	b.wantPaid(res, err, 2, false)
}

// A resolver that knows nothing may keep a response with the unknown outcome.
// It is no success either.
func TestDirectRepeatOfAnUnknownOutcomeWithAResponseIsRefused(t *testing.T) {
	b := setup(t, parts{})
	op := b.direct("k1", "{}")
	http := op
	http.Transport = idem.TransportHTTP // the same request, as another transport ran it
	if _, err := b.engine.Do(t.Context(), http, answers(500)); err != nil {
		t.Fatalf("Do() = %v, want the handler's answer", err)
	}
	b.wantState("k1", driver.StateUnknown)
	_, err := b.engine.Do(t.Context(), op, b.pay)
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	b.wantRuns(0)
}

// Do without a handler is refused before anything is consumed.
func TestNilHandlerIsRefusedAtOnce(t *testing.T) {
	b := setup(t, parts{})
	_, err := b.engine.Do(t.Context(), b.direct("k1", "{}"), nil)
	b.wantRefused(err, idem.CodeInternal)
	b.wantState("k1", driver.StateNone)
	res, err := b.engine.Do(t.Context(), b.direct("k1", "{}"), b.pay)
	b.wantPaid(res, err, 1, false)
}
