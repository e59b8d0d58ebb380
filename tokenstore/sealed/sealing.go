package sealed

import (
	"context"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var _ idem.SetupOption = Sealing{}

// Sealing is an [idem.SetupOption] that seals the responses of the engine. The zero Sealing does nothing. Make it with [Responses].
type Sealing struct {
	ring *Ring
	opts []Option
	on   bool
}

// Responses has an engine seal its responses, as [New] does. It also declares that in the store, so that idemctl asks operators for
// the keys.
func Responses(ring *Ring, opts ...Option) Sealing { return Sealing{ring, opts, true} }

// ConfiguresEngine makes it an [idem.SetupOption]. It does nothing.
func (Sealing) ConfiguresEngine() {}

// Over returns a store that seals, or the same store without sealing.
func (s Sealing) Over(ctx context.Context, store driver.Store) (driver.Store, error) {
	if !s.on {
		return store, nil
	}
	over, err := New(store, s.ring, s.opts...)
	if err != nil {
		return nil, err
	}
	return over, declare(ctx, store)
}

// OverJoined is Over for joined mode.
func (s Sealing) OverJoined(ctx context.Context, store driver.JoinedStore) (driver.JoinedStore, error) {
	if !s.on {
		return store, nil
	}
	over, err := NewJoined(store, s.ring, s.opts...)
	if err != nil {
		return nil, err
	}
	return over, declare(ctx, store)
}

// declare notes in a store that its responses are sealed, if it can.
func declare(ctx context.Context, store driver.Store) error {
	if d, ok := store.(interface {
		DeclareSealed(ctx context.Context) error
	}); ok {
		return d.DeclareSealed(ctx)
	}
	return nil
}
