#!/usr/bin/env bash
# Runs every fuzz target of the module for the time given (default 10s), one
# after the other: go test takes one at a time. The status is that of the first
# target that found something; its input is then in testdata/fuzz.
set -euo pipefail

go=${GO:-go}
time=${1:-10s}
found=0
log=$(mktemp)
trap 'rm -f "$log"' EXIT
while IFS=: read -r file target; do
	found=1
	echo "== ${file%/*} $target"
	if ! "$go" test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./${file%/*}" 2>&1 | tee "$log"; then
		# Where the time ends while an input is being made smaller, go test
		# fails with just that, and has found nothing (golang/go#75804, Go 1.26).
		grep -q 'Failing input written' "$log" && exit 1
		grep -qx ' *context deadline exceeded' "$log" || exit 1
		echo "== the time ended; nothing was found"
	fi
done < <(grep -rEo --include='*_test.go' '^func Fuzz[[:alnum:]_]*' . | sed -E 's#^\./##; s/func //' | sort)

((found)) || echo "there are no fuzz targets"
