// Package uuid makes the random names of lock domains and of store incarnations.
package uuid

import (
	"crypto/rand"
	"encoding/hex"
)

// Length is the length of a text in bytes.
const Length = 36

// New returns the text of a random UUID (RFC 9562, version 4).
func New() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return Text(u)
}

// Text returns the text of a UUID in lower-case digits.
func Text(u [16]byte) string {
	text := make([]byte, 0, Length)
	for i := range u {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, u[i:i+1])
	}
	return string(text)
}

// Parse reads a text of [Text]. It returns false for every other text.
func Parse(text string) (u [16]byte, ok bool) {
	if len(text) != Length {
		return u, false
	}
	digits := make([]byte, 0, 2*len(u))
	for _, part := range [...]string{text[:8], text[9:13], text[14:18], text[19:23], text[24:]} {
		digits = append(digits, part...)
	}
	_, err := hex.Decode(u[:], digits)
	return u, err == nil && Text(u) == text
}
