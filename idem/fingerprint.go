package idem

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// FingerprintVersion is the version of fingerprint that this build makes.
// Older ones stay computable, so that keys survive an upgrade.
const FingerprintVersion = 1

// Fingerprint tells whether two requests are the same one: a versioned
// SHA-256 over the operation and the canonical request. The zero value is no
// fingerprint.
type Fingerprint struct {
	Version uint8
	Sum     [sha256.Size]byte
}

// IsZero reports whether f is no fingerprint: it has no version, or no sum.
func (f Fingerprint) IsZero() bool { return f.Version == 0 || f.Sum == [sha256.Size]byte{} }

// String returns "v1:" and 64 hexadecimal digits.
func (f Fingerprint) String() string {
	return fmt.Sprintf("v%d:%s", f.Version, hex.EncodeToString(f.Sum[:]))
}

// Fingerprinter computes a request's fingerprint in the version asked for. It
// is called again, with an older version, when a stored record has one. It
// returns ErrFingerprintVersion for a version that it does not know.
type Fingerprinter func(version uint8) (Fingerprint, error)

const fingerprintPurpose = "idemkeeper fingerprint 1\x00"

// NewFingerprint hashes a transport-qualified operation ("http POST /v1/pay")
// and the canonical parts of a request, each behind its length.
func NewFingerprint(version uint8, operation string, parts ...string) (Fingerprint, error) {
	if version != 1 {
		return Fingerprint{}, fmt.Errorf("%w: %d", ErrFingerprintVersion, version)
	}
	return Fingerprint{Version: 1, Sum: digest(fingerprintPurpose, operation, parts...)}, nil
}

// FingerprintOf is the fingerprint of an operation ("settle invoice") and of all
// that makes two requests with one key different ones: their canonical parts. It
// is what a caller of [Engine.Do] needs.
func FingerprintOf(operation string, parts ...string) Fingerprinter {
	return func(version uint8) (Fingerprint, error) {
		return NewFingerprint(version, "direct "+operation, parts...)
	}
}
