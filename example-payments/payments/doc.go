// Package payments is the domain of the sample: payments between the accounts
// of a merchant, what makes a request for one valid, and how one is executed.
//
// It is what a team that adopts Idemkeeper writes itself. [Service.Pay] is the
// part to read: it runs as the handler of an idempotent route and does the two
// things that the guarantee needs from a handler. It asks [idem.CheckOwner]
// right before the irreversible step, and it hands the fencing token of its
// execution to the [Ledger], which refuses a lower one than it has seen.
//
// The ledger does not remove duplicates: it stores the operation ID with every
// payment, and not as a unique one. Behind a middleware that failed, two
// payments would show.
package payments
