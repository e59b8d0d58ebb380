package server

import (
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// LedgerResolver is [payments.LedgerResolver] for keys that are used over HTTP
// only.
func LedgerResolver(l payments.Ledger, private bool) idem.Resolver {
	return payments.LedgerResolver(l, private, func(_ string, p payments.Payment) (idem.Response, error) { return Answer(p) })
}
