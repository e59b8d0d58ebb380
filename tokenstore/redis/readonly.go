package redisstore

import (
	"context"
	"errors"
	"fmt"
)

// ErrReadOnly says that a call was refused because the store was made with
// [WithReadOnly]. Nothing was done.
var ErrReadOnly = errors.New("tokenstore/redis: store only reads")

// WithReadOnly makes a store that writes nothing, for tools that look at what
// others keep. [New] creates no incarnations; Issue, Begin, Settle, Abort,
// Retire, AcceptLoss and DeclareSealed fail with [ErrReadOnly], and all else
// works.
//
// Where the witness knows the incarnations, a shard that holds another one, or
// none, has lost its records, as for any store. Without a witness, or with one
// that has nothing yet, those that Redis holds when the store is made have to
// be there, and a shard that holds none then has simply not been used: a record
// that is missing there is one in idem.StateNone.
//
// New refuses it together with [WithLossAcceptance].
func WithReadOnly() Option { return func(c *config) { c.readOnly = true } }

func (s *Store) mayWrite(method string) error {
	if s.readOnly {
		return fmt.Errorf("tokenstore/redis: %s: %w", method, ErrReadOnly)
	}
	return nil
}

// look is establish for a store that only reads.
func (n *incarnations) look(ctx context.Context) error {
	want, _, err := n.load(ctx)
	if err != nil {
		return err
	}
	if want == nil {
		want, err = n.read(ctx)
	}
	if err != nil {
		return err
	}
	n.want.Store(want)
	n.found(ctx)
	return nil
}
