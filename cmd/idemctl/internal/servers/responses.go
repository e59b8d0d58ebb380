package servers

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
)

// Responses has the flags about stored responses that the services encrypt.
type Responses struct {
	keys  string
	plain bool
}

// Keys reports whether --response-keys was given.
func (r *Responses) Keys() bool { return r.keys != "" }

// seal returns the store as seen by services that encrypt stored responses.
func (r *Responses) seal(store Store) (Store, error) {
	ring, err := sealed.ParseRing(r.keys)
	if err != nil {
		return nil, cli.UsageError{Err: fmt.Errorf("--response-keys: %w", err)}
	}
	opts := []sealed.Option{sealed.WithLogger(slog.New(slog.DiscardHandler))}
	if r.plain {
		opts = append(opts, sealed.WithPlain())
	}
	s, err := sealed.New(store, ring, opts...)
	if err != nil {
		return nil, fmt.Errorf("--response-keys: %w", err)
	}
	return sealedStore{s, store}, nil
}

// sealedStore encrypts responses. The operator's methods go to the store below directly.
type sealedStore struct {
	*sealed.Store

	below Store
}

// AcceptLoss implements [Store].
func (s sealedStore) AcceptLoss(ctx context.Context) (int, error) { return s.below.AcceptLoss(ctx) }

// Sealed implements [Store].
func (s sealedStore) Sealed(ctx context.Context) (bool, error) { return s.below.Sealed(ctx) }
