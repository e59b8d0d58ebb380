// Command example-payments is a payment service with endpoints that are safe to
// retry. It is the sample of Idemkeeper, and its end-to-end tests run it.
//
//	go run ./example-payments
//	curl -i localhost:8080/v1/payments -H 'Authorization: Bearer demo' \
//	     -H 'Idempotency-Key: order-17' -H 'Content-Type: application/json' \
//	     -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 17"}'
//
// Send the request twice. The second answer repeats the first, with the header
// Idempotent-Replayed, and alice has paid once.
//
// Over gRPC the key and the mark of a replay are metadata:
//
//	grpcurl -plaintext -v -H 'authorization: Bearer demo' -H 'idempotency-key: order-18' \
//	     -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 18"}' \
//	     localhost:9090 payments.v1.PaymentService/CreatePayment
//
// Both transports share accounts, payments and keys. A key that was used over one
// transport is refused over the other, and never executed again.
//
// # Where to look
//
// wiring.go connects the library's parts, from top to bottom. serve.go serves and
// stops in the right order. Package payments is the domain, ledger its SQL, server
// its HTTP and rpc its gRPC.
//
// # Limits
//
// Without --redis the keys are lost at exit, and without --database the ledger is.
// A ledger that outlives its keys cannot recognise a repeated request. Keep both in
// servers, or both in the process.
package main
