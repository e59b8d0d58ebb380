package payments

import (
	"context"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Answer makes the stored form of the answer to a payment, as the handler of
// the route would have given it: the same for the same payment.
type Answer func(route string, p Payment) (idem.Response, error)

// LedgerResolver settles interrupted payments by what the ledger holds. It
// raises the ledger's fence to its own in the transaction that looks, so that
// "not applied" stays true. Where the ledger refuses it, a later holder is at
// work, and it cannot tell.
//
// private says that other instances, which share the keys, have ledgers of
// their own: what is not in this one may be in another.
func LedgerResolver(l Ledger, private bool, answer Answer) idem.Resolver {
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
		r, err := answer(in.Route, *p)
		if err != nil {
			return idem.StillUnknown(), err
		}
		return idem.Applied(r), nil
	}
}
