package idem

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// A plain fingerprint gives a request away that can be guessed. Whoever reads the store and knows
// all of a payment but six digits of the card tries a million requests in two seconds. A keyed
// fingerprint is an HMAC of the plain one, so it tells nothing without the key.
//
//	version  that of the plain fingerprint, plus 128
//	sum      tag of the key (8 bytes) | HMAC-SHA256 over the plain fingerprint, cut off (24 bytes)
//
// The tag is derived from the secret and says which key to compare with. So keys can change, and
// no store knows the difference.

const (
	keyed   = 0x80 // in the version
	tagSize = 8
)

// minFingerprintSecret is the least length of a secret in bytes.
const minFingerprintSecret = 32

// FingerprintKey is a secret for fingerprints, see [WithFingerprintKeys]. Printing it shows its tag
// only. Make it with [NewFingerprintKey], or with the ring of package sealed. The zero value stands
// for plain fingerprints.
type FingerprintKey struct {
	tag    [tagSize]byte
	secret [sha256.Size]byte
	set    bool
}

// NewFingerprintKey makes a key of a secret of 32 random bytes or more. The secret may have other
// uses, because the key is derived from it. The error does not show the secret.
func NewFingerprintKey(secret []byte) (FingerprintKey, error) {
	if len(secret) < minFingerprintSecret {
		return FingerprintKey{}, fmt.Errorf("idem: the secret of a fingerprint key has %d bytes, want %d or more", len(secret), minFingerprintSecret)
	}
	k := FingerprintKey{secret: mac(secret, []byte("idemkeeper fingerprint key 1")), set: true}
	sum := mac(k.secret[:], []byte("tag"))
	copy(k.tag[:], sum[:])
	return k, nil
}

func mac(secret []byte, parts ...[]byte) (sum [sha256.Size]byte) {
	h := hmac.New(sha256.New, secret)
	for _, p := range parts {
		h.Write(p)
	}
	h.Sum(sum[:0])
	return sum
}

// String returns the tag, which is stored with each fingerprint made with the key.
func (k FingerprintKey) String() string {
	if !k.set {
		return "plain"
	}
	return fmt.Sprintf("%x", k.tag)
}

// Format writes the tag for every verb.
func (k FingerprintKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// LogValue implements [slog.LogValuer]. It shows the tag.
func (k FingerprintKey) LogValue() slog.Value { return slog.StringValue(k.String()) }

// of returns the keyed form of a plain fingerprint.
func (k *FingerprintKey) of(plain driver.Fingerprint) driver.Fingerprint {
	if !k.set {
		return plain
	}
	sum := mac(k.secret[:], []byte("fingerprint"), []byte{plain.Version}, plain.Sum[:])
	f := driver.Fingerprint{Version: plain.Version | keyed}
	copy(f.Sum[:], k.tag[:])
	copy(f.Sum[tagSize:], sum[:])
	return f
}

// tagOf names the key of a fingerprint. It is zero for a plain one.
func tagOf(f driver.Fingerprint) (tag [tagSize]byte) {
	if f.Version&keyed != 0 {
		copy(tag[:], f.Sum[:])
	}
	return tag
}

// fingerprintKeys are the keys of an engine. The first one makes fingerprints, and all compare.
type fingerprintKeys []FingerprintKey

// current returns the form in which a plain fingerprint is stored.
func (ks fingerprintKeys) current(plain driver.Fingerprint) driver.Fingerprint {
	if len(ks) == 0 {
		return plain
	}
	return ks[0].of(plain)
}

// ofStored returns the key that made a stored fingerprint. The error says that it is not here.
func (ks fingerprintKeys) ofStored(stored driver.Fingerprint) (*FingerprintKey, error) {
	if stored.Version&keyed == 0 {
		return &FingerprintKey{}, nil
	}
	for i := range ks {
		if ks[i].set && ks[i].tag == tagOf(stored) {
			return &ks[i], nil
		}
	}
	return nil, fmt.Errorf("%w: tag %x", errFingerprintKey, tagOf(stored))
}

var errFingerprintKey = errors.New("idem: the record has a fingerprint by a key that this engine does not have, see WithFingerprintKeys")

func (ks fingerprintKeys) validate() error {
	for i, k := range ks {
		if !k.set && i > 0 {
			return fmt.Errorf("idem: fingerprint key %d is empty", i+1)
		}
		for _, earlier := range ks[:i] {
			if k.set && earlier.tag == k.tag {
				return fmt.Errorf("idem: fingerprint key %d repeats an earlier one", i+1)
			}
		}
	}
	return nil
}

// WithFingerprintKeys makes the fingerprints of requests with a secret key (HMAC-SHA256). Without
// it they are plain hashes, and a reader of the store who can guess a request, such as the missing
// digits of a card number, can check the guess.
//
// The first key makes fingerprints. All keys, and plain fingerprints from before, are compared.
// Every instance needs the same keys. A record whose key is missing is answered as
// CodeUnavailable, and nothing runs, because the engine cannot tell whether the request is the
// same.
//
// A new key comes in three steps. Finish each step on all instances before the next one.
//
//  1. Append the new key. If there was none, give FingerprintKey{} as the first.
//  2. Put it in front.
//  3. Remove the old key when KeyTTL has passed since the second step and no record from before is
//     open.
func WithFingerprintKeys(primary FingerprintKey, others ...FingerprintKey) Option {
	return func(c *config) { c.fingerprintKeys = append(fingerprintKeys{primary}, others...) }
}
