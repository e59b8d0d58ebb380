// Package digest has the hash from which key IDs, operation IDs and fingerprints are made.
package digest

import (
	"crypto/sha256"
	"encoding/binary"
)

// Of hashes a purpose and parts, each with its length. Two different lists of parts never have
// the same input.
func Of(purpose string, parts ...string) [sha256.Size]byte {
	buf := make([]byte, 0, 1024) // on the stack, and enough for most requests
	return sha256.Sum256(AppendParts(AppendParts(buf, purpose), parts...))
}

// AppendParts appends parts, each after its length.
func AppendParts(buf []byte, parts ...string) []byte {
	for _, p := range parts {
		buf = append(binary.BigEndian.AppendUint64(buf, uint64(len(p))), p...)
	}
	return buf
}
