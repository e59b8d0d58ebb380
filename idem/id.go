package idem

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/internal/digest"
)

// NewKeyID derives the ID of a key in a scope. Different pairs of scope and key never have the
// same input to the hash.
func NewKeyID(scope string, key Key) driver.KeyID {
	return driver.KeyID(digest.Of("idemkeeper key 1", scope, string(key)))
}

// downstreamKey derives the key that an operation sends to the system called name. It is a
// version 8 UUID (RFC 9562, section 5.8), because every receiver of idempotency keys accepts
// that form.
func downstreamKey(operationID, name string) string {
	sum := digest.Of("idemkeeper downstream 1", operationID, name)
	u := sum[:16]
	u[6] = u[6]&0x0f | 0x80
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
