#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time (default 10s), one after
# the other, because go test runs one at a time. It stops with the status of the
# first target that found something. The failing input is in testdata/fuzz.
# With a number as the second argument it also keeps so many of the inputs there that
# reached new code, in the order in which the fuzzer found them. A plain go test runs
# these again.
set -euo pipefail

go=${GO:-go}
time=${1:-10s}
keep=${2:-0}
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
	cache=$("$go" env GOCACHE)/fuzz/$("$go" list "./${file%/*}")/$target
	if ((keep)) && [[ -d $cache ]]; then
		mkdir -p "${file%/*}/testdata/fuzz/$target"
		(cd "$cache" && ls -tr) | awk -v n="$keep" "NR <= n" | while read -r input; do
			cp "$cache/$input" "${file%/*}/testdata/fuzz/$target/"
		done
	fi
done < <(grep -rEo --include='*_test.go' '^func Fuzz[[:alnum:]_]*' . | sed -E 's#^\./##; s/func //' | sort)

((found)) || echo "there are no fuzz targets"
