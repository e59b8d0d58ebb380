package resend

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Key returns the key of a new logical call: inside of an execution the one
// that the execution sends to the system called name, else a random one. The
// error is idem.ErrExecutionEnded: nothing may be sent.
func Key(ctx context.Context, name string) (string, error) {
	key, err := idem.DownstreamKey(ctx, name)
	if errors.Is(err, idem.ErrNoExecution) {
		return newUUID(), nil
	}
	return key, err
}

// Gate notes in an execution that something is about to be sent which may have
// an effect. [Key] does so, too. The error is idem.ErrExecutionEnded: nothing may
// be sent.
func Gate(ctx context.Context) error {
	if _, err := idem.DownstreamKey(ctx, ""); !errors.Is(err, idem.ErrNoExecution) {
		return err
	}
	return nil
}

// newUUID is of version 4 (RFC 9562, section 5.4): random, and telling nothing.
func newUUID() string {
	var u [16]byte
	_, _ = rand.Read(u[:]) // never fails (crypto/rand, since Go 1.24)
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
