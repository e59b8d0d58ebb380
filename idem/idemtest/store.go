package idemtest

import (
	"context"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// StoreHarness tells [RunStore] how to make stores.
type StoreHarness struct {
	// New returns an empty store for one test. It arranges the end of the store with
	// tb.Cleanup. It is required.
	New func(tb testing.TB) driver.Store

	// Advance moves the clock of the stores from New. After it returns, everything that expires
	// by then is gone. If it is nil, the suite waits for short times to live, and skips the
	// tests with long ones.
	Advance func(d time.Duration)

	// Damage damages the data of a key in a store from New, not through the store. It is nil
	// for a store in this process, because its data cannot be damaged.
	Damage func(tb testing.TB, s driver.Store, id driver.KeyID, d Damage)

	// Features describes the abilities of the store.
	Features StoreFeatures
}

// StoreFeatures are the abilities in which stores differ. The zero value fits most stores.
type StoreFeatures struct {
	// MaxBody is the length of the longest response body in bytes. 0 is 1 MiB.
	MaxBody int
}

// RunStore runs the conformance suite of [driver.Store], a subtest for each
// behaviour, one after the other. Run it with the race detector.
func RunStore(t *testing.T, h StoreHarness) {
	t.Helper()
	if h.New == nil {
		t.Fatal("idemtest: StoreHarness.New is nil")
	}
	if h.Features.MaxBody == 0 {
		h.Features.MaxBody = 1 << 20
	}
	for _, group := range []struct {
		name  string
		tests []storeTest
	}{
		{"begin", storeBeginTests},
		{"fence", storeFenceTests},
		{"settle", storeSettleTests},
		{"restore", storeRestoreTests},
		{"repair", storeRepairTests},
		{"rerun", storeRerunTests},
		{"abort", storeAbortTests},
		{"resend", storeResendTests},
		{"expiry", storeExpiryTests},
		{"remember", storeRememberTests},
		{"open", storeOpenTests},
		{"retire", storeRetireTests},
		{"highest fence", storeHighestTests},
		{"inspect", storeInspectTests},
		{"response", storeResponseTests},
		{"damage", storeDamageTests},
		{"concurrency", storeConcurrencyTests},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, tt := range group.tests {
				if tt.moves && h.Advance == nil || tt.damages && h.Damage == nil {
					continue
				}
				t.Run(tt.name, func(t *testing.T) { tt.run(newStoreBench(t, h)) })
			}
		})
	}
}

// storeTest is one behaviour.
type storeTest struct {
	name    string
	run     func(b *storeBench)
	moves   bool // needs a clock that can be moved
	damages bool // needs records that can be damaged
}

// storeBench is the fixture of a subtest.
type storeBench struct {
	*testing.T
	h     StoreHarness
	ctx   context.Context
	s     driver.Store
	id    driver.KeyID // never used before
	token uint64       // of the last fence handed out
}

// storeTimeout bounds every wait of the suite.
const storeTimeout = 20 * time.Second

func newStoreBench(t *testing.T, h StoreHarness) *storeBench {
	t.Helper()
	return &storeBench{T: t, h: h, ctx: t.Context(), s: h.New(t), id: randomKeyID(), token: 1 << 40}
}

func randomKeyID() driver.KeyID {
	return idem.NewKeyID("idemtest", idem.Key(driver.NewNonce().String()))
}

// storeDomain is the lock domain of all attempts but foreign ones.
const storeDomain = "idemtest-domain"

// request returns the Begin of a new attempt, under the next fence.
func (b *storeBench) request(kind driver.KeyKind) driver.BeginRequest {
	b.token++
	return storeRequest(kind, storeDomain, b.token)
}

func storeRequest(kind driver.KeyKind, domain string, token uint64) driver.BeginRequest {
	fp, err := idem.NewFingerprint(1, "idemtest POST /v1/payments", "amount", "10.00")
	if err != nil {
		panic(err)
	}
	return driver.BeginRequest{
		Kind: kind, Route: "idemtest POST /v1/payments", Nonce: driver.NewNonce(),
		Fence: driver.Fence{Domain: domain, Token: token}, Fingerprint: fp, ResultTTL: time.Hour, KeyTTL: 2 * time.Hour,
	}
}

// storeResponse is a small answer.
func storeResponse() *driver.Response {
	return &driver.Response{
		Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}},
		Body: []byte(`{"payment":"p_1","amount":"10.00"}`),
	}
}

// settlement returns a settlement by the holder of an attempt.
func settlement(a driver.Attempt, state driver.State) driver.Settlement {
	s := driver.Settlement{Attempt: a, ID: a.Nonce, State: state, ResultTTL: time.Hour, KeyTTL: 2 * time.Hour}
	if state != driver.StateReleased {
		s.Response = storeResponse()
	}
	return s
}

// decision returns a settlement of an attempt by an operator.
func decision(a driver.Attempt, state driver.State) driver.Settlement {
	s := settlement(a, state)
	s.ID = driver.NewNonce()
	s.Decision = driver.Decision{By: "operator", Reason: "looked at the ledger"}
	return s
}
