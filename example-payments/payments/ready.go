package payments

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// readyTimeout bounds a readiness check.
const readyTimeout = 2 * time.Second

// Ready says whether a payment with a fresh key would be served now: nil, or
// what cannot be reached of lock, token store and ledger.
func Ready(ctx context.Context, e *idem.Engine, l Ledger) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	return errors.Join(e.Ping(ctx), l.Ping(ctx))
}
