// Package uuid makes the random names of lock domains and of store incarnations.
package uuid

import (
	"crypto/rand"
	"fmt"
)

// New returns a random UUID (RFC 9562, version 4).
func New() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:])
}
