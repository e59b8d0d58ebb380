#!/usr/bin/env bash
# Runs go mod tidy in each module of scripts/modules.txt. A module of the workspace gets replace lines for a moment, because
# go mod tidy does not read go.work, and the versions that these modules require of each other need not be released yet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
top=$PWD go=${GO:-go}
export GOWORK=off
root=$("$go" list -m)
path_of() { [[ $1 == . ]] && echo "$root" || echo "$root/$1"; }

while read -r kind folder; do
	cd "$top/$folder"
	others=()
	if [[ $kind != beside ]]; then
		while read -r other; do
			[[ $other == "$folder" ]] || others+=("$(path_of "$other")=$top/$other")
		done < <(awk '$1 == "published" { print $2 }' "$top/scripts/modules.txt")
	fi
	status=0
	for other in "${others[@]}"; do "$go" mod edit -replace="$other"; done
	"$go" mod tidy || status=$?
	for other in "${others[@]}"; do "$go" mod edit -dropreplace="${other%%=*}"; done
	((status == 0)) || { echo "tidy: $folder failed" >&2; exit "$status"; }
done < <(awk '/^(published|internal|beside)/ { print $1, $2 }' scripts/modules.txt)
