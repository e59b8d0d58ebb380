package payments

import (
	"context"
	"errors"
)

type crashKey struct{}

// WithCrash marks a charge that is to end in its middle, for people who try the sample out.
func WithCrash(ctx context.Context) context.Context {
	return context.WithValue(ctx, crashKey{}, true)
}

// errCrash is the end of a charge from [WithCrash].
var errCrash = errors.New("payments: the charge was made to fail after the ledger was written")

// crash ends a marked charge. The ledger has been written, and nobody has been told.
func (s *Service) crash(ctx context.Context) error {
	if marked, _ := ctx.Value(crashKey{}).(bool); !marked {
		return nil
	}
	if s.Crash != nil {
		s.Crash()
	}
	return errCrash
}
