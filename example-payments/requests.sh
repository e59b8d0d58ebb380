#!/usr/bin/env bash
# What the sample can do, line by line, for curl and grpcurl (github.com/fullstorydev/grpcurl).
# The word before the colon is the status that each line gets from a new instance:
#
#   go run ./example-payments &
#   bash -v example-payments/requests.sh
HTTP=${HTTP:-localhost:8080} GRPC=${GRPC:-localhost:9090}

# 201: pay
curl -i "$HTTP/v1/payments" -H 'Authorization: Bearer demo' -H 'Idempotency-Key: order-17' -H 'Content-Type: application/json' -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 17"}'
# 201: the same again gets the first answer, with Idempotent-Replayed, and alice has paid once
curl -i "$HTTP/v1/payments" -H 'Authorization: Bearer demo' -H 'Idempotency-Key: order-17' -H 'Content-Type: application/json' -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 17"}'
# 422: another amount under the same key
curl -i "$HTTP/v1/payments" -H 'Authorization: Bearer demo' -H 'Idempotency-Key: order-17' -H 'Content-Type: application/json' -d '{"from":"alice","to":"bob","amount":1300,"currency":"USD","note":"order 17"}'
# 400: no key
curl -i "$HTTP/v1/payments" -H 'Authorization: Bearer demo' -H 'Content-Type: application/json' -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 17"}'
# 402: too much, and the refusal is kept for repeats
curl -i "$HTTP/v1/payments" -H 'Authorization: Bearer demo' -H 'Idempotency-Key: order-18' -H 'Content-Type: application/json' -d '{"from":"alice","to":"bob","amount":99000000,"currency":"USD","note":"order 18"}'
# 401: nobody
curl -i "$HTTP/v1/accounts"
# 200: the state of a key
curl -i "$HTTP/v1/idempotency" -H 'Authorization: Bearer demo' -H 'Idempotency-Key: order-17'
# 200: payments with a note
curl -i -G "$HTTP/v1/payments" -H 'Authorization: Bearer demo' --data-urlencode note='order 17'
# 200: the state of the key has the operation ID
OPERATION=$(curl -s "$HTTP/v1/idempotency" -H 'Authorization: Bearer demo' -H 'Idempotency-Key: order-17' | sed 's/.*"operation_id":"\([^"]*\)".*/\1/')
# 200: what the operation has charged
curl -i -G "$HTTP/v1/payments" -H 'Authorization: Bearer demo' --data-urlencode operation_id="$OPERATION"
# 400: an operation ID with a typing error is no empty list
curl -i "$HTTP/v1/payments?operation_id=op_17" -H 'Authorization: Bearer demo'
# 200: an account
curl -i "$HTTP/v1/accounts/alice" -H 'Authorization: Bearer demo'
# 201: a one-time token
TOKEN=$(curl -s -X POST "$HTTP/v1/tokens" -H 'Authorization: Bearer demo' | sed 's/.*"token":"\([^"]*\)".*/\1/')
# 201: a trade with the token
curl -i "$HTTP/v1/trades" -H 'Authorization: Bearer demo' -H "Idempotency-Key: $TOKEN" -H 'Content-Type: application/json' -d '{"from":"bob","to":"alice","amount":100,"currency":"USD","note":"trade"}'
# 403: a trade with a key of one's own
curl -i "$HTTP/v1/trades" -H 'Authorization: Bearer demo' -H 'Idempotency-Key: order-19' -H 'Content-Type: application/json' -d '{"from":"bob","to":"alice","amount":100,"currency":"USD","note":"trade"}'
# 200: metrics
curl "$HTTP/metrics"

# OK: pay over gRPC
grpcurl -plaintext -v -H 'authorization: Bearer demo' -H 'idempotency-key: order-20' -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 20"}' "$GRPC" payments.v1.PaymentService/CreatePayment
# OK: the same again is replayed
grpcurl -plaintext -v -H 'authorization: Bearer demo' -H 'idempotency-key: order-20' -d '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"order 20"}' "$GRPC" payments.v1.PaymentService/CreatePayment
# FailedPrecondition: another amount
grpcurl -plaintext -v -H 'authorization: Bearer demo' -H 'idempotency-key: order-20' -d '{"from":"alice","to":"bob","amount":1300,"currency":"USD","note":"order 20"}' "$GRPC" payments.v1.PaymentService/CreatePayment
# OK: a token
grpcurl -plaintext -H 'authorization: Bearer demo' "$GRPC" payments.v1.PaymentService/IssueToken
# NotFound: no such payment
grpcurl -plaintext -H 'authorization: Bearer demo' -d '{"id":"pay_0"}' "$GRPC" payments.v1.PaymentService/GetPayment
# OK: payments, newest first
grpcurl -plaintext -H 'authorization: Bearer demo' "$GRPC" payments.v1.PaymentService/ListPayments
# OK: an account
grpcurl -plaintext -H 'authorization: Bearer demo' -d '{"id":"alice"}' "$GRPC" payments.v1.PaymentService/GetAccount
# OK: the methods
grpcurl -plaintext "$GRPC" list payments.v1.PaymentService
# OK: health
grpcurl -plaintext "$GRPC" grpc.health.v1.Health/Check
