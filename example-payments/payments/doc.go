// Package payments is the domain of the sample: payments between the accounts of
// a merchant.
//
// A team that adopts Idemkeeper writes this part itself. Start with
// [Service.Pay]. It is called from the handler of an idempotent route and does
// the two things that the guarantee needs from a handler. It calls
// [idem.CheckOwner] right before the irreversible step, and it hands the fencing
// token of its execution to the [Ledger], which refuses a lower one than it has
// seen.
//
// The ledger does not remove duplicates. It stores the operation ID with every
// payment, and the ID is not unique. If the middleware failed, two payments would
// show.
package payments
