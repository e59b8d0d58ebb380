#!/usr/bin/env bash
# Pays once, however often it has to ask: pay.sh URL KEY
set -eu
url=$1 key=$2 asked_once=
until=$((SECONDS + 60))
while :; do
	status=$(curl --silent --show-error --max-time 30 --output answer.json --dump-header header.txt --write-out '%{http_code}' \
		--header "Idempotency-Key: $key" \
		--header 'Authorization: Bearer demo' \
		--header 'Content-Type: application/json' \
		--data '{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"'"$key"'"}' \
		"$url/v1/payments") || status=000
	# Retry-After is a number or a date. pause is empty without it.
	pause=$(sed -n 's/^[Rr]etry-[Aa]fter: *\(.*\)\r$/\1/p' header.txt 2>/dev/null || true)
	if [[ ! $pause =~ ^[0-9]*$ ]]; then
		pause=$(date -d "$pause" +%s 2>/dev/null) && pause=$((pause > $(date +%s) ? pause - $(date +%s) : 0)) || pause=
	fi
	case $status in
	000 | 429 | 502 | 503 | 504) ;; # no answer, or not now
	409) [[ $pause ]] || grep -q '"in-progress"' answer.json || break ;;
	408 | 499 | 5??) # one repeat tells what became of it
		[[ $pause || -z $asked_once ]] || break
		asked_once=yes
		;;
	*) break ;;
	esac
	[[ $status == 000 ]] || ! grep -qi '^idempotent-replayed: true' header.txt 2>/dev/null || break # the outcome, which does not change
	((SECONDS < until)) || break
	sleep "${pause:-1}"
done
cat answer.json
[[ $status == 201 ]]
