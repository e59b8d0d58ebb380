package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Fingerprint tells whether two requests are the same. It is a versioned SHA-256 over the
// operation and the canonical request. With idem.WithFingerprintKeys it is an HMAC over that, its
// Version is greater by 128, and its first 8 bytes name the key. The zero value is no fingerprint.
type Fingerprint struct {
	Version uint8
	Sum     [sha256.Size]byte
}

// IsZero reports whether f is no fingerprint, because it lacks the version or the sum.
func (f Fingerprint) IsZero() bool { return f.Version == 0 || f.Sum == [sha256.Size]byte{} }

// String returns "v1:" and 64 hexadecimal digits.
func (f Fingerprint) String() string {
	return fmt.Sprintf("v%d:%s", f.Version, hex.EncodeToString(f.Sum[:]))
}
