package server

import (
	"context"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// LedgerResolver settles interrupted payments by what the ledger holds. It
// raises the ledger's fence to its own in the transaction that looks, so that
// "not applied" stays true. Where the ledger refuses it, a later holder is at
// work, and it cannot tell.
//
// private says that other instances, which share the keys, have ledgers of
// their own: what is not in this one may be in another.
func LedgerResolver(l payments.Ledger, private bool) idem.Resolver {
	return func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
		p, err := l.Settle(ctx, in.OperationID, in.Fence, in.Attempt.Fence)
		if err != nil {
			return idem.StillUnknown(), err
		}
		if p == nil && private {
			return idem.StillUnknown(), nil
		}
		if p == nil {
			return idem.NotApplied(), nil
		}
		r, err := created(*p)
		if err != nil {
			return idem.StillUnknown(), err
		}
		return idem.Applied(r), nil
	}
}
