package driver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/internal/digest"
)

// KeyID stands for a key everywhere below the transport. It is SHA-256 over the scope and the
// key, each with its length. The key cannot be computed from it.
type KeyID [sha256.Size]byte

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
	sum := digest.Of("idemkeeper operation 1", string(id[:]))
	return "op_" + hex.EncodeToString(sum[:16])
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

// KeyKind says who made a key.
type KeyKind uint8

const (
	// ClientKey is a key made up by the client. Its first use creates the record.
	ClientKey KeyKind = iota
	// IssuedToken is a one-time token from the server. Its first use consumes it, and every
	// other value is refused.
	IssuedToken
)

// String returns "client-key" or "issued-token".
func (k KeyKind) String() string {
	if k == IssuedToken {
		return "issued-token"
	}
	return "client-key"
}
