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
// The same over gRPC, where the key is metadata, and so is the mark of a replay:
//
//	grpcurl -plaintext -v -H 'authorization: Bearer demo' -H 'idempotency-key: order-18' \
//	     -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 18"}' \
//	     localhost:9090 payments.v1.PaymentService/CreatePayment
//
// Both transports share accounts, payments and keys: a key that was used over
// one is refused over the other, and never executed again.
//
// Package payments is the domain, ledger its SQL, auth its API keys, server its
// HTTP and rpc its gRPC; this package reads the configuration, connects the
// parts and ends them in the right order.
//
// What it keeps in the process (without --redis: the keys; without --database:
// the ledger, too) is lost at exit. A ledger that outlives its keys does not
// know a repeated request from a new one: keep the two together.
package main
