package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

// KeyID is what stands for a key everywhere behind the transport: SHA-256 over
// the length-prefixed scope and key. It cannot be turned back into the key.
type KeyID [sha256.Size]byte

// NewKeyID derives the ID of a key in a scope. Different (scope, key) pairs
// never share their input to the hash, whatever bytes they hold.
func NewKeyID(scope string, key Key) KeyID {
	return KeyID(digest("idemkeeper key 1", "", scope, string(key)))
}

// String returns 64 lower-case hexadecimal digits.
func (id KeyID) String() string { return hex.EncodeToString(id[:]) }

// ParseKeyID reads what [KeyID.String] wrote.
func ParseKeyID(s string) (KeyID, error) {
	var id KeyID
	if len(s) != 2*len(id) {
		return KeyID{}, fmt.Errorf("idem: key ID of %d characters, want %d", len(s), 2*len(id))
	}
	if _, err := hex.Decode(id[:], []byte(s)); err != nil {
		return KeyID{}, errors.New("idem: key ID is not hexadecimal")
	}
	return id, nil
}

// OperationID names what a key stands for towards the application and the
// systems behind it. It depends on the key ID alone, so it is the same for
// every attempt and survives the loss of the token store.
func (id KeyID) OperationID() string {
	sum := digest("idemkeeper operation 1", "", string(id[:]))
	text := [3 + 2*16]byte{'o', 'p', '_'}
	hex.Encode(text[3:], sum[:16])
	return string(text[:])
}

// downstreamKey derives the key to send to the system called name on behalf of
// an operation: a version 8 UUID (RFC 9562, section 5.8), since that is the
// form that every receiver of idempotency keys accepts.
func downstreamKey(operationID, name string) string {
	sum := digest("idemkeeper downstream 1", "", operationID, name)
	u := sum[:16]
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// digest hashes a purpose, which may end in a detail, and parts, each behind its
// length, so that no two lists of parts have the same input.
func digest(purpose, detail string, parts ...string) [sha256.Size]byte {
	var stack [512]byte // enough for all but long parts
	buf := binary.BigEndian.AppendUint64(stack[:0], uint64(len(purpose)+len(detail)))
	buf = append(append(buf, purpose...), detail...)
	for _, p := range parts {
		buf = appendPart(buf, p)
	}
	return sha256.Sum256(buf)
}

func appendPart(buf []byte, p string) []byte {
	buf = binary.BigEndian.AppendUint64(buf, uint64(len(p)))
	return append(buf, p...)
}
