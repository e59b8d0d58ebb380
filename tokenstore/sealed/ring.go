package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// KeySize is the length of a key's secret in bytes, for AES-256.
const KeySize = 32

// maxKeyID is the longest ID of a ring key in bytes.
const maxKeyID = 32

// Key is one key of a [Ring]. Printing it shows its ID only. Make it with [NewKey].
type Key struct {
	id          string
	aead        cipher.AEAD // makes random nonces, and is safe for concurrent use
	fingerprint idem.FingerprintKey
}

// NewKey returns a key. The ID is stored in the clear beside each response that the key
// seals. It has 1 to 32 printable ASCII characters, without space, comma and equals sign.
// The secret has 32 random bytes, and the key does not keep it. Errors show neither.
func NewKey(id string, secret []byte) (Key, error) {
	if !validID(id) {
		return Key{}, fmt.Errorf("tokenstore/sealed: ring key: want an ID of 1 to %d printable ASCII characters, without space, comma and equals sign", maxKeyID)
	}
	if len(secret) != KeySize {
		return Key{}, fmt.Errorf("tokenstore/sealed: ring key: secret of %d bytes, want %d", len(secret), KeySize)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return Key{}, fmt.Errorf("tokenstore/sealed: ring key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return Key{}, fmt.Errorf("tokenstore/sealed: ring key: %w", err)
	}
	fingerprint, err := idem.NewFingerprintKey(secret)
	if err != nil {
		return Key{}, fmt.Errorf("tokenstore/sealed: ring key: %w", err)
	}
	return Key{id: id, aead: aead, fingerprint: fingerprint}, nil
}

func validID(id string) bool {
	return id != "" && len(id) <= maxKeyID && !strings.ContainsFunc(id, func(c rune) bool {
		return c <= ' ' || c > '~' || c == ',' || c == '='
	})
}

// ID returns the key's ID.
func (k Key) ID() string { return k.id }

// Format writes the key's ID for every verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.id)) }

// LogValue implements [slog.LogValuer]. It shows the key's ID.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.id) }

// Ring holds the keys. The first key seals, and all keys open. A ring does not change and
// is safe for concurrent use. Printing it shows the IDs of its keys only.
//
// A new key comes in three steps. Finish each step on all instances before the next one.
//
//  1. Append the new key, so that all instances can open its responses.
//  2. Put it in front.
//  3. Remove the old key when no response sealed by it is left.
//
// Completed responses are left for the longest ResultTTL of a route after the second step.
// KeyTTL does not matter, because no response is left by then. The response of an unknown outcome stays until a
// decision, so look for those too.
type Ring struct {
	keys []Key
}

// NewRing returns a ring of one or more keys with different IDs.
func NewRing(primary Key, others ...Key) (*Ring, error) {
	r := &Ring{keys: make([]Key, 0, 1+len(others))}
	for i, k := range append([]Key{primary}, others...) {
		switch {
		case k.aead == nil:
			return nil, fmt.Errorf("tokenstore/sealed: ring: NewKey did not make key %d", i+1)
		case r.find(k.id) != nil:
			return nil, fmt.Errorf("tokenstore/sealed: ring: key %d has the ID of an earlier key", i+1)
		}
		r.keys = append(r.keys, k)
	}
	return r, nil
}

// MustNewRing is [NewRing] for known-good keys. Like [regexp.MustCompile] it panics where NewRing returns
// an error.
func MustNewRing(primary Key, others ...Key) *Ring { return must(NewRing(primary, others...)) }

// ParseRing reads "ID=BASE64,ID=BASE64" from a flag or an environment variable. The primary
// key comes first. "openssl rand -base64 32" prints a suitable BASE64. Errors show the
// position of the fault, and no part of the list.
func ParseRing(list string) (*Ring, error) {
	var keys []Key
	for i, pair := range strings.Split(list, ",") {
		id, text, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return nil, fmt.Errorf("tokenstore/sealed: ring: key %d is not ID=BASE64", i+1)
		}
		secret, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil { // err may quote the secret
			return nil, fmt.Errorf("tokenstore/sealed: ring: key %d is not in base64", i+1)
		}
		k, err := NewKey(id, secret)
		clear(secret)
		if err != nil {
			return nil, fmt.Errorf("tokenstore/sealed: ring: key %d: %w", i+1, err)
		}
		keys = append(keys, k)
	}
	return NewRing(keys[0], keys[1:]...)
}

// IDs lists the IDs of the keys, the primary first.
func (r Ring) IDs() []string {
	ids := make([]string, len(r.keys))
	for i, k := range r.keys {
		ids[i] = k.id
	}
	return ids
}

// FingerprintKeys returns keys for [idem.WithFingerprintKeys], the primary first. They are derived
// from the secrets of the ring. A ring for fingerprints keeps a key for the KeyTTL of all routes,
// which is longer than the ResultTTL.
func (r Ring) FingerprintKeys() (primary idem.FingerprintKey, others []idem.FingerprintKey) {
	for i, k := range r.keys {
		if i == 0 {
			primary = k.fingerprint
			continue
		}
		others = append(others, k.fingerprint)
	}
	return primary, others
}

// String returns the IDs of the keys.
func (r Ring) String() string { return "ring[" + strings.Join(r.IDs(), " ") + "]" }

// Format writes the IDs of the keys for every verb.
func (r Ring) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(r.String())) }

// LogValue implements [slog.LogValuer]. It shows the IDs of the keys.
func (r Ring) LogValue() slog.Value { return slog.StringValue(r.String()) }

func (r Ring) find(id string) *Key {
	for i := range r.keys {
		if r.keys[i].id == id {
			return &r.keys[i]
		}
	}
	return nil
}
