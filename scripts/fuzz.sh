#!/usr/bin/env bash
# Runs every fuzz target of the module for the time given (default 10s), one
# after the other: go test takes one at a time. The status is that of the first
# target that found something; its input is then in testdata/fuzz.
set -euo pipefail

go=${GO:-go}
time=${1:-10s}
found=0
while IFS=: read -r file target; do
	found=1
	echo "== ${file%/*} $target"
	"$go" test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "./${file%/*}"
done < <(grep -rEo --include='*_test.go' '^func Fuzz[[:alnum:]_]*' . | sed -E 's#^\./##; s/func //' | sort)

((found)) || echo "there are no fuzz targets"
