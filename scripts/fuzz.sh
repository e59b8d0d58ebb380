#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time (default 10s), one after
# the other, because go test runs one at a time. It stops with the status of the
# first target that found something. The failing input is in testdata/fuzz.
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
		# If the time ends while go test minimises an input, it fails without
		# having found anything (golang/go#75804, Go 1.26).
		grep -q 'Failing input written' "$log" && exit 1
		grep -qx ' *context deadline exceeded' "$log" || exit 1
		echo "== the time ended without a finding"
	fi
done < <(grep -rEo --include='*_test.go' '^func Fuzz[[:alnum:]_]*' . | sed -E 's#^\./##; s/func //' | sort)

((found)) || echo "there are no fuzz targets"
