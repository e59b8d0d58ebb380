package sweeper_test

import (
	"context"
	"log/slog"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/sweeper"
)

// A service starts a sweeper beside its routes. It asks the resolver of each route, until the
// context ends.
func ExampleNew() {
	start := func(ctx context.Context, engine *idem.Engine, payments idem.Policy) error {
		s, err := sweeper.New(engine, engine.Store(), sweeper.ForAll(payments), sweeper.WithObserver(func(_ context.Context, p sweeper.Pass) {
			if p.Err != nil {
				slog.Warn("sweep", "error", p.Err)
			}
		}))
		if err != nil {
			return err
		}
		go s.Run(ctx)
		return nil
	}
	_ = start // it runs for as long as the service
}
