#!/usr/bin/env bash
# Pays once, however often it has to ask: pay.sh URL KEY
set -eu
url=$1 key=$2
# curl itself repeats a request without an answer, and 408, 429, 500, 502, 503 and 504.
while :; do
	status=$(curl --silent --show-error --max-time 30 --output answer.json --write-out '%{http_code}' \
		--retry 8 --retry-all-errors --retry-max-time 60 \
		--header "Idempotency-Key: $key" \
		--header 'Authorization: Bearer demo' \
		--header 'Content-Type: application/json' \
		--data '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"'"$key"'"}' \
		"$url/v1/payments")
	# The first request with this key still runs.
	if [[ $status == 409 ]] && grep -q '"in-progress"' answer.json; then
		sleep 1
		continue
	fi
	break
done
cat answer.json
[[ $status == 201 ]]
