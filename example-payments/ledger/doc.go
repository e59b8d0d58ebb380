// Package ledger keeps accounts, payments and fences in SQL: in an embedded
// SQLite database that is lost at exit, a SQLite file, or PostgreSQL.
//
// Every payment is one transaction. Its first statements raise the fence kept
// for the payment's operation and refuse it where a later holder has been
// there, so that the answer of [Ledger.Settle] stays true: once it has found
// no payment, an earlier holder that wakes up cannot make one. Fences are
// comparable within a lock domain only. A fence of another domain succeeds the
// one that is kept, and the succeeded domain is refused from then on.
//
// Duplicates are not removed: the operation ID is stored with each payment,
// and not as a unique one.
package ledger
