package sealed

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/base64"
	"fmt"
	"log/slog"
	"strings"
)

// KeySize is the length of a key's secret in bytes: AES-256.
const KeySize = 32

// maxKeyID is the longest ID of a ring key in bytes.
const maxKeyID = 32

// Key is one key of a [Ring]. It shows its ID and nothing else, however it is
// printed. Make it with [NewKey].
type Key struct {
	id   string
	aead cipher.AEAD // of random nonces; safe for concurrent use
}

// NewKey returns a key. The ID is stored with everything that the key seals, in
// the clear: 1 to 32 printable ASCII characters, without space, comma and equals
// sign. The secret has 32 random bytes, and is not kept. Errors show neither.
func NewKey(id string, secret []byte) (Key, error) {
	if !validID(id) {
		return Key{}, fmt.Errorf("tokenstore/sealed: the ID of a ring key has 1 to %d printable ASCII characters, without space, comma and equals sign", maxKeyID)
	}
	if len(secret) != KeySize {
		return Key{}, fmt.Errorf("tokenstore/sealed: a ring key of %d bytes, want %d", len(secret), KeySize)
	}
	block, err := aes.NewCipher(secret)
	if err != nil {
		return Key{}, fmt.Errorf("tokenstore/sealed: ring key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return Key{}, fmt.Errorf("tokenstore/sealed: ring key: %w", err)
	}
	return Key{id: id, aead: aead}, nil
}

func validID(id string) bool {
	if id == "" || len(id) > maxKeyID {
		return false
	}
	for i := range len(id) {
		if c := id[i]; c <= ' ' || c > '~' || c == ',' || c == '=' {
			return false
		}
	}
	return true
}

// ID returns the key's ID.
func (k Key) ID() string { return k.id }

// String returns the key's ID.
func (k Key) String() string { return k.id }

// GoString returns the key's ID.
func (k Key) GoString() string { return k.id }

// Format writes the key's ID, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

// LogValue implements [slog.LogValuer].
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// Ring holds the keys: the first one seals, all open. It does not change and is
// safe for concurrent use. It shows the IDs of its keys and nothing else,
// however it is printed.
//
// A new key comes in three steps, each on all instances before the next one:
// append it, so that everybody can open what it seals; put it in front; and
// remove the old one once nothing is left that it has sealed. A completed
// response is there for ResultTTL after the second step; KeyTTL does not matter,
// since no response is left by then. The response of an unknown outcome stays
// until somebody decides, so look for those too.
type Ring struct {
	keys []Key
}

// NewRing returns a ring of one or more keys with different IDs.
func NewRing(primary Key, others ...Key) (*Ring, error) {
	r := &Ring{keys: make([]Key, 0, 1+len(others))}
	for i, k := range append([]Key{primary}, others...) {
		switch {
		case k.aead == nil:
			return nil, fmt.Errorf("tokenstore/sealed: ring: key %d was not made by NewKey", i+1)
		case r.find(k.id) != nil:
			return nil, fmt.Errorf("tokenstore/sealed: ring: key %d has the ID of an earlier one", i+1)
		}
		r.keys = append(r.keys, k)
	}
	return r, nil
}

// ParseRing reads "ID=BASE64,ID=BASE64", the primary key first, as flags and
// environment variables hold it. BASE64 is what "openssl rand -base64 32"
// prints. Errors show nothing of the list but the place of the fault.
func ParseRing(list string) (*Ring, error) {
	var keys []Key
	for i, pair := range strings.Split(list, ",") {
		id, text, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return nil, fmt.Errorf("tokenstore/sealed: ring: key %d is not ID=BASE64", i+1)
		}
		secret, err := base64.StdEncoding.Strict().DecodeString(text)
		if err != nil { // whose text may quote what it was given
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

// String returns the IDs of the keys.
func (r Ring) String() string { return "ring[" + strings.Join(r.IDs(), " ") + "]" }

// GoString returns the IDs of the keys.
func (r Ring) GoString() string { return r.String() }

// Format writes the IDs of the keys, whatever the verb.
func (r Ring) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(r.String())) }

// LogValue implements [slog.LogValuer].
func (r Ring) LogValue() slog.Value { return slog.StringValue(r.String()) }

func (r Ring) find(id string) *Key {
	for i := range r.keys {
		if r.keys[i].id == id {
			return &r.keys[i]
		}
	}
	return nil
}
