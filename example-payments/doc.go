// Command example-payments is a payment service whose money-moving endpoints
// are safe to retry. It is the sample of Idemkeeper, and what its end-to-end
// tests run.
//
//	go run ./example-payments
//	curl -i localhost:8080/v1/payments -H 'Authorization: Bearer demo' \
//	     -H 'Idempotency-Key: order-17' -H 'Content-Type: application/json' \
//	     -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 17"}'
//
// Send the second line twice: the second answer is the first one again, marked
// Idempotent-Replayed, and alice has paid once.
//
// Package payments is the domain, ledger its SQL, server its HTTP; this package
// reads the configuration, connects the parts and ends them in the right
// order.
//
// What it keeps in the process (without --redis: the keys; without --database:
// the ledger, too) is lost at exit. A ledger that outlives its keys does not
// know a repeated request from a new one: keep the two together.
package main
