package idem_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func fingerprintKey(t testing.TB, fill byte) idem.FingerprintKey {
	t.Helper()
	k, err := idem.NewFingerprintKey(bytes.Repeat([]byte{fill}, 32))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// keyedFleet is a store whose instances have different fingerprint keys.
type keyedFleet struct {
	testing.TB

	lock   driver.Locker
	store  driver.Store
	joined driver.JoinedStore // nil outside of joined mode
	runs   int
}

// pay sends a payment with one key to an instance.
func (f *keyedFleet) pay(amount string, policy idem.Policy, opts ...idem.Option) (idem.Result, error) {
	f.Helper()
	engine, err := idem.New(f.lock, f.store, opts...)
	if f.joined != nil {
		engine, err = idem.NewJoined(f.joined, opts...)
	}
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = engine.Close(context.Background()) }()
	policy.AllowGlobalKeys = true
	return engine.Do(context.Background(), idem.Operation{Transport: idem.TransportHTTP, Key: "k1", Policy: &policy,
		Fingerprint: idem.FingerprintOf("pay", amount)},
		func(ctx context.Context) (idem.Response, error) {
			f.runs++
			if f.joined != nil {
				if _, err := idem.JoinedTxOf(ctx); err != nil {
					return idem.Response{}, err
				}
				if f.runs == 1 {
					return idem.Response{Status: 500}, nil // rolled back, and the binding stays
				}
			}
			return idem.Response{Status: 201}, nil
		})
}

func (f *keyedFleet) stored() driver.Fingerprint {
	f.Helper()
	rec, err := f.store.Get(context.Background(), idem.NewKeyID("", "k1"))
	if err != nil {
		f.Fatal(err)
	}
	return rec.Fingerprint
}

func newKeyedFleet(t testing.TB) *keyedFleet {
	t.Helper()
	return &keyedFleet{TB: t, lock: memorylock.New(), store: memorystore.New()}
}

// codeOf is the code of a refusal, or "".
func codeOf(err error) idem.Code {
	if r, ok := err.(*idem.Refusal); ok { //nolint:errorlint // Do returns it bare
		return r.Code
	}
	return ""
}

// A reader of the store who can make all requests in question must not find the one that was sent.
func TestKeyedFingerprintsCannotBeGuessed(t *testing.T) {
	t.Parallel()
	f := newKeyedFleet(t)
	if _, err := f.pay("card 4711", idem.Policy{InDoubt: idem.LeaveUnknown()}, idem.WithFingerprintKeys(fingerprintKey(t, 1))); err != nil {
		t.Fatal(err)
	}
	stored := f.stored()
	for guess := range 10_000 {
		plain, err := idem.FingerprintOf("pay", fmt.Sprintf("card %d", guess))(1)
		if err != nil {
			t.Fatal(err)
		}
		if stored.Sum == plain.Sum {
			t.Fatalf("the stored fingerprint is that of card %d", guess)
		}
	}
}

// Each row is a first request at one instance, and the same and another request at a second one.
func TestInstancesCompareFingerprintsByTheKeyOfTheRecord(t *testing.T) {
	t.Parallel()
	k1, k2 := fingerprintKey(t, 1), fingerprintKey(t, 2)
	none, plain := []idem.Option(nil), idem.FingerprintKey{}
	keys := func(first idem.FingerprintKey, others ...idem.FingerprintKey) []idem.Option {
		return []idem.Option{idem.WithFingerprintKeys(first, others...)}
	}
	for name, tt := range map[string]struct {
		first, second []idem.Option
		unavailable   bool // the second instance cannot tell
	}{
		"the same key":                   {first: keys(k1), second: keys(k1)},
		"a new key in front":             {first: keys(k1), second: keys(k2, k1)},
		"a key that is not in front yet": {first: keys(k2, k1), second: keys(k1, k2)},
		"plain records from before":      {first: none, second: keys(k1)},
		"keys that only compare so far":  {first: keys(k1), second: keys(plain, k1)},
		"plain beside keys that compare": {first: keys(plain, k1), second: none},
		"a key that was removed":         {first: keys(k1), second: keys(k2), unavailable: true},
		"an instance without keys":       {first: keys(k1), second: none, unavailable: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newKeyedFleet(t)
			if _, err := f.pay("1250", idem.Policy{InDoubt: idem.LeaveUnknown()}, tt.first...); err != nil {
				t.Fatal(err)
			}
			res, err := f.pay("1250", idem.Policy{InDoubt: idem.LeaveUnknown()}, tt.second...)
			_, other := f.pay("9999", idem.Policy{InDoubt: idem.LeaveUnknown()}, tt.second...)
			switch {
			case tt.unavailable:
				if codeOf(err) != idem.CodeUnavailable || codeOf(other) != idem.CodeUnavailable {
					t.Errorf("repeat = %v, another request = %v, want unavailable for both", err, other)
				}
			case err != nil || !res.Replayed || codeOf(other) != idem.CodeKeyReused:
				t.Errorf("repeat = %v, %v, another request = %v, want a replay and key-reused", res, err, other)
			}
			if f.runs != 1 {
				t.Errorf("handler ran %d times, want 1", f.runs)
			}
		})
	}
}

// An attempt in doubt, and the binding of an attempt that was rolled back, keep the key by which they
// were made.
func TestFingerprintKeysChangeUnderAnOpenAttempt(t *testing.T) {
	t.Parallel()
	k1, k2 := fingerprintKey(t, 1), fingerprintKey(t, 2)
	t.Run("in doubt", func(t *testing.T) {
		t.Parallel()
		f := newKeyedFleet(t)
		again := idem.Policy{InDoubt: idem.RunAgain()}
		engine, err := idem.New(f.lock, f.store, idem.WithFingerprintKeys(k1))
		if err != nil {
			t.Fatal(err)
		}
		again.AllowGlobalKeys = true
		_, _ = engine.Do(t.Context(), idem.Operation{Transport: idem.TransportHTTP, Key: "k1", Policy: &again, Fingerprint: idem.FingerprintOf("pay", "1250")},
			func(context.Context) (idem.Response, error) { return idem.Response{Status: 500}, nil })
		_ = engine.Close(t.Context())
		for _, tt := range []struct {
			amount string
			keys   idem.Option
			want   idem.Code
			runs   int
		}{
			{"1250", idem.WithFingerprintKeys(k2), idem.CodeUnavailable, 0},
			{"9999", idem.WithFingerprintKeys(k2, k1), idem.CodeKeyReused, 0},
			{"1250", idem.WithFingerprintKeys(k2, k1), "", 1},
			{"1250", idem.WithFingerprintKeys(k2, k1), "", 1},
		} {
			if _, err := f.pay(tt.amount, again, tt.keys); codeOf(err) != tt.want || f.runs != tt.runs {
				t.Errorf("pay %s = %v after %d runs, want %q after %d", tt.amount, err, f.runs, tt.want, tt.runs)
			}
		}
	})
	t.Run("joined and bound", func(t *testing.T) {
		t.Parallel()
		book := newBook()
		f := &keyedFleet{TB: t, store: book, joined: book}
		policy := idem.Policy{CallsOtherSystems: true, InDoubt: idem.LeaveUnknown()}
		_, _ = f.pay("1250", policy, idem.WithFingerprintKeys(k1))
		if _, err := f.pay("1250", policy, idem.WithFingerprintKeys(k2)); codeOf(err) != idem.CodeUnavailable || f.runs != 1 {
			t.Errorf("without the key of the binding = %v after %d runs, want unavailable", err, f.runs)
		}
		if _, err := f.pay("9999", policy, idem.WithFingerprintKeys(k2, k1)); codeOf(err) != idem.CodeKeyReused || f.runs != 1 {
			t.Errorf("another request = %v after %d runs, want key-reused", err, f.runs)
		}
		if res, err := f.pay("1250", policy, idem.WithFingerprintKeys(k2, k1)); err != nil || res.Response.Status != 201 || f.runs != 2 {
			t.Errorf("the same request = %v, %v after %d runs, want 201 after 2", res, err, f.runs)
		}
	})
}

func TestFingerprintKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := idem.NewFingerprintKey(make([]byte, 31)); err == nil {
		t.Error("NewFingerprintKey() of 31 bytes = nil, want an error")
	}
	k1 := fingerprintKey(t, 1)
	for name, opt := range map[string]idem.Option{
		"twice":             idem.WithFingerprintKeys(k1, k1),
		"an empty one last": idem.WithFingerprintKeys(k1, idem.FingerprintKey{}),
	} {
		if _, err := idem.New(memorylock.New(), memorystore.New(), opt); err == nil {
			t.Errorf("%s: New() = nil, want an error", name)
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x"} {
		if got := fmt.Sprintf(verb, k1); got != k1.String() || strings.Contains(got, "0101") {
			t.Errorf("%s prints %s, want the tag", verb, got)
		}
	}
}

// TestFingerprintOfAnotherVersion: the record was bound by a build whose fingerprints have
// another version. The request is compared in that version, or not at all.
func TestFingerprintOfAnotherVersion(t *testing.T) {
	stored := driver.Fingerprint{Version: 7, Sum: [32]byte{1}}
	for name, tt := range map[string]struct {
		again func() (driver.Fingerprint, error) // the request in version 7
		code  idem.Code
	}{
		"the same request":                   {func() (driver.Fingerprint, error) { return stored, nil }, idem.CodeResultUnavailable},
		"another request":                    {func() (driver.Fingerprint, error) { return driver.Fingerprint{Version: 7, Sum: [32]byte{2}}, nil }, idem.CodeKeyReused},
		"no fingerprint":                     {func() (driver.Fingerprint, error) { return driver.Fingerprint{}, nil }, idem.CodeKeyReused},
		"version not known":                  {func() (driver.Fingerprint, error) { return idem.NewFingerprint(7, "http POST /pay", "a") }, idem.CodeUnavailable},
		"same, with an error":                {func() (driver.Fingerprint, error) { return stored, errors.New("boom") }, idem.CodeUnavailable},
		"version not known to FingerprintOf": {func() (driver.Fingerprint, error) { return idem.FingerprintOf("pay", "a")(7) }, idem.CodeUnavailable},
		"panic":                              {func() (driver.Fingerprint, error) { panic("boom") }, idem.CodeUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			attempt := b.interrupted("probe", "a") // for the domain of the locker
			id := idem.NewKeyID("m1", "k")
			got, err := b.store.Begin(t.Context(), id, driver.BeginRequest{Kind: b.kind(), Fence: attempt.Fence, Nonce: driver.NewNonce(), Fingerprint: stored})
			if err == nil {
				_, err = b.store.Settle(t.Context(), id, driver.Settlement{Attempt: got.Record.Attempt, State: driver.StateCompleted,
					Response: &driver.Response{Omitted: true}, ResultTTL: idem.DefaultResultTTL, KeyTTL: idem.DefaultKeyTTL})
			}
			if err != nil {
				t.Fatal(err)
			}
			op := b.operation("k", "a")
			now := op.Fingerprint
			op.Fingerprint = func(v uint8) (driver.Fingerprint, error) {
				if v == stored.Version {
					return tt.again()
				}
				return now(v)
			}
			_, err = b.engine.Do(t.Context(), op, b.pay)
			b.wantRefused(err, tt.code)
			b.wantRuns(0)
			b.wantFree("k")
		})
	}
}
