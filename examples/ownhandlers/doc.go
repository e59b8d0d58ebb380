// Package ownhandlers is the code that a team writes by hand in place of Idemkeeper: idempotency keys in a table of its
// own PostgreSQL, in about a hundred lines. make load measures Idemkeeper against it. It is written with care, as most
// articles on idempotency keys advise. README.md lists what it does not cover.
//
// [Payments] is for payments that only write to the database. [BankPayments] is for those that also call a bank.
package ownhandlers
