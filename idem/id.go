package idem

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// KeyID stands for a key everywhere below the transport. It is SHA-256 over the scope and the
// key, each with its length. The key cannot be computed from it.
type KeyID [sha256.Size]byte

// NewKeyID derives the ID of a key in a scope. Different pairs of scope and key never have the
// same input to the hash.
func NewKeyID(scope string, key Key) KeyID {
	return KeyID(digest("idemkeeper key 1", scope, string(key)))
}

// String returns 64 lower-case hexadecimal digits.
func (id KeyID) String() string { return hex.EncodeToString(id[:]) }

// ParseKeyID reads the text of [KeyID.String].
func ParseKeyID(s string) (id KeyID, err error) {
	err = parseHex(id[:], "key ID", s)
	return id, err
}

// OperationID names the operation of a key for the application and the systems below it. It
// depends on the key ID alone. So it is the same for every attempt and survives the loss of the
// token store.
func (id KeyID) OperationID() string {
	sum := digest("idemkeeper operation 1", string(id[:]))
	return "op_" + hex.EncodeToString(sum[:16])
}

// downstreamKey derives the key that an operation sends to the system called name. It is a
// version 8 UUID (RFC 9562, section 5.8), because every receiver of idempotency keys accepts
// that form.
func downstreamKey(operationID, name string) string {
	sum := digest("idemkeeper downstream 1", operationID, name)
	u := sum[:16]
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// digest hashes a purpose and parts, each with its length. Two different lists of parts
// never have the same input.
func digest(purpose string, parts ...string) [sha256.Size]byte {
	buf := make([]byte, 0, 1024) // on the stack, and enough for most requests
	return sha256.Sum256(appendParts(appendParts(buf, purpose), parts...))
}

// appendParts appends parts, each after its length.
func appendParts(buf []byte, parts ...string) []byte {
	for _, p := range parts {
		buf = append(binary.BigEndian.AppendUint64(buf, uint64(len(p))), p...)
	}
	return buf
}

// parseHex fills id from hexadecimal digits.
func parseHex(id []byte, name, digits string) error {
	if len(digits) != 2*len(id) {
		return fmt.Errorf("idem: %s of %d characters, want %d", name, len(digits), 2*len(id))
	}
	if _, err := hex.Decode(id, []byte(digits)); err != nil {
		clear(id)
		return fmt.Errorf("idem: %s is not hexadecimal", name)
	}
	return nil
}
