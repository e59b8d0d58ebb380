package sealed

import (
	"context"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Sealing is an option of idemredis.New, idemsql.New and idemzk.New, which seals the responses of the engine. The zero
// Sealing does nothing. Make it with [Responses].
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
	if d, ok := store.(interface{ DeclareSealed(context.Context) error }); ok {
		if err := d.DeclareSealed(ctx); err != nil {
			return nil, err
		}
	}
	return over, nil
}
