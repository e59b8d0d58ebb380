#!/usr/bin/env bash
# Checks the models exhaustively, and then that each deliberate fault breaks its promise, and where
# the promises end.
# A line for each run. The exit status is the verdict. Each processor has a run, up to four
# of them, and each needs up to 1 GB of memory.
#
#   model/run.sh [NAME]   runs the lines whose name contains NAME
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

all=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$all"' EXIT

# build KIND FILE SETTINGS… makes the checker of a model: SAFETY for its promises, NP for cycles.
# gcc takes five times as long to optimize it as most of the searches take.
build() {
	local kind=$1 file=$PWD/$2
	shift 2
	(cd "$work" && spin -a "$@" "$file" && gcc -w -O0 "-D$kind" -DCOLLAPSE -DNOFAIR -DMEMLIM=4000 -o pan pan.c)
}

# field PREFIX prints the number in the line of the report that has the text.
field() { sed -n "s/^ *\([0-9.]*\).*$1.*/\1/p" "$work/report" | head -1; }

# promises NAME FILE SETTINGS… looks at every reachable state. No run may stop halfway, and each
# promise has to hold.
promises() { search holds SAFETY "" "$@"; }

# ends NAME FILE SETTINGS… looks at every reachable state, and no run may come to a state a second
# time. So no run goes on for ever.
ends() { search ends NP -l "$@"; }

search() {
	local told=$1 kind=$2 option=$3 name=$4 start=$SECONDS
	shift 4
	build "$kind" "$@" || { failed=1; return; }
	(cd "$work" && ./pan $option -m400000 -w24 >report) || true
	if grep -q 'errors: 0$' "$work/report" && ! grep -qE 'Search not completed|max search depth too small|out of memory' "$work/report"; then
		printf '%-7s %-26s %9s states  %5.0f MB  %4d s\n' "$told" "$name" "$(field 'states, stored')" "$(field 'total actual memory')" $((SECONDS - start))
	else
		failed=1
		echo "FAILED  $name: $*"
		replay "$@"
	fi
}

# replay FILE SETTINGS… prints the steps that lead to the fault.
replay() {
	local file=$PWD/$1
	shift
	grep -E 'errors:|Search not completed|too small|invalid end|memory' "$work/report" || true
	# spin leaves files where it runs, so each run has its own directory.
	[[ -e $work/${file##*/}.trail ]] && (cd "$work" && spin -B -k "${file##*/}.trail" "$@" "$file") | sed 's/^ *//' | grep -vE '^$|#process' | head -60
}

# breaks NAME PROMISE FILE SETTINGS… runs a model until the promise breaks.
breaks() {
	local name=$1 promise=$2 file=$3
	shift 2
	build SAFETY "$@" || { failed=1; return 1; }
	(cd "$work" && ./pan -m200000 -w20 >report) || true
	if [[ -e $work/$file.trail ]] && replay "$@" >"$work/steps" && grep -qE "^BROKEN: *($promise)" "$work/steps"; then
		return 0
	fi
	failed=1
	echo "FAILED  $name does not break: $promise"
	[[ ! -e $work/steps ]] || cat "$work/steps"
	return 1
}

# told prints the first promise that the last run broke.
told() { sed -n '/^BROKEN/{s/^BROKEN: *\(.*[^ ]\) *$/\1/p;q}' "$work/steps"; }

# broken MUTANT PROMISE FILE SETTINGS… is a model with a deliberate fault.
broken() {
	local mutant=$1
	shift
	! breaks "$mutant" "$@" "-DMUTANT_$mutant" || printf 'caught  %-26s %s\n' "$mutant" "$(told)"
}

# limit NAME PROMISE FILE SETTINGS… is a run that shows where a promise ends.
limit() { ! breaks "$@" || printf 'limit   %-26s %s\n' "$1" "$(told)"; }

# run NUMBER COMMAND… is a run in a directory of its own.
run() {
	work=$all/$1 failed=0
	mkdir "$work"
	shift
	"$@"
	exit $failed
}

verdict=0
pids=()
# finish NUMBER waits for a run, and prints what it said.
finish() {
	wait "${pids[$1]}" || verdict=1
	cat "$all/$1.out"
	rm -rf "${all:?}/$1"
}

wanted=${1:-}
parallel=$(nproc)
((parallel <= 4)) || parallel=4
while read -r line; do
	[[ -z $line || $line == '#'* ]] && continue
	eval "set -- $line"
	[[ $2 == *"$wanted"* ]] || continue
	n=${#pids[@]}
	((n < parallel)) || finish $((n - parallel))
	run "$n" "$@" >"$all/$n.out" 2>&1 &
	pids+=($!)
done <runs.txt
for ((n = ${#pids[@]} > parallel ? ${#pids[@]} - parallel : 0; n < ${#pids[@]}; n++)); do
	finish "$n"
done
exit $verdict
