package idem_test

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

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
