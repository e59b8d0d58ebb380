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
// Or open http://localhost:8080/ and pay there: click twice, change the amount, and crash
// the charge in its middle. With --demo that ends the process, and another one takes over.
// The operator's console is at /console/ (name and password "ops" while the instance has
// no server, and only at localhost or a loopback address; see --operators).
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
// # Where the keys are
//
// By default the record of a key commits in the same transaction as the payment
// (--token-store sql). A crash at any moment leaves both or neither, and nothing has
// to be looked up afterwards:
//
//	go run ./example-payments                                         embedded, lost at exit
//	go run ./example-payments --database sqlite:payments.db           one instance
//	go run ./example-payments --database postgres://app@db/payments   several instances
//	go run ./example-payments --database mysql://app@db/payments
//
// With --redis the records are in Redis, the lock is in ZooKeeper (--zookeeper) or in
// Redis, and the ledger checks the fencing token. That also fits a service whose money
// moves elsewhere. deploy/compose.yaml starts three instances in this way, with their servers.
// With --token-store memory the keys are lost at exit. A ledger that outlives its keys cannot
// recognise a repeated request.
package main
