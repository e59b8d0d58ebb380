#!/usr/bin/env bash
# Runs go test in one module after the other and prints their results through gotestsum. The last
# line is "N passed, N failed". Tests and subtests count alike.
#
#   scripts/test.sh [-quick] [-first "PACKAGES"] [-C DIR]... -- [flags of go test] PACKAGES
#
# go test begins with the packages in the order of its arguments. -first names packages of the first
# folder that take longest, so that nothing is left to wait for at the end.
#
# The first folder has the workspace, and PACKAGES is usually "work", which means all modules in go.work. The other folders
# have modules beside it. All packages of these run without go.work and without the race detector, because what they would
# find with it is the library's, and they take many dependencies. They run at the same time as the workspace. Their results
# come later, because results of two runs in one stream could cut each other's lines.
#
# scripts/count.awk says what counts as passed and failed. The exit status is 1 if anything failed or
# no test ran. -quick runs go test with -short, and a test that needs a server counts as left out.
# Otherwise -short is refused, so that a full run leaves out no test.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

# The command that gotestsum runs: the events of each module, and the greatest status.
if [[ ${1:-} == events ]]; then
	first=$2 others=$3 longest=$4
	shift 4
	# A module may fail without an event, as one with a broken go.mod does. It gets an event of its own.
	events_of() {
		local dir=$1 statuses
		shift
		(cd "$dir" && exec "${GO:-go}" test -json "$@") | awk '{ print; fflush() } /"Action":"fail"/ { failed = 1 } END { exit failed }' && statuses=(0 0) || statuses=("${PIPESTATUS[@]}")
		((statuses[0] == 0 || statuses[1])) || printf '{"Action":"fail","Package":"the module in %s"}\n' "$dir"
		return "${statuses[0]}"
	}
	(
		status=0
		for dir in $others; do GOWORK=off events_of "$dir" "${@:1:$#-1}" -p=1 -race=false ./... >>"$TEST_EVENTS.others" || { s=$?; ((s <= status)) || status=$s; }; done
		exit "$status"
	) &
	status=0
	events_of "$first" "${@:1:$#-1}" $longest "${@:$#}" || status=$?
	wait $! || { s=$?; ((s <= status)) || status=$s; }
	cat "$TEST_EVENTS.others" 2>/dev/null || true
	exit "$status"
fi

quick= longest= dirs=()
while [[ ${1:-} != -- ]]; do
	case $1 in
	-quick) quick=1 ;;
	-first) longest=$2 && shift ;;
	-C) dirs+=("$2") && shift ;;
	*) echo "test.sh: unknown argument $1" >&2 && exit 2 ;;
	esac
	shift
done
shift
flags=("$@")
if [[ $quick ]]; then
	flags=(-short "${flags[@]}")
else
	for flag in "${flags[@]}"; do
		if [[ $flag =~ ^--?(test\.)?short(=|$) ]]; then
			echo "FAIL: $flag would leave tests out of a full run; use make quick"
			echo "0 passed, 1 failed"
			exit 1
		fi
	done
fi
((${#dirs[@]})) || dirs=(.)

TEST_EVENTS=$(mktemp)
export TEST_EVENTS
trap 'rm -f "$TEST_EVENTS" "$TEST_EVENTS.others"' EXIT
status=0
"${GOTESTSUM:?names the program}" --format pkgname-and-test-fails --format-icons text ${quick:+--hide-summary skipped} \
	--ignore-non-json-output-lines --jsonfile "$TEST_EVENTS" --raw-command -- \
	"$here/test.sh" events "${dirs[0]}" "${dirs[*]:1}" "$longest" "${flags[@]}" || status=$?
awk -v quick="$quick" -v status="$status" -f "$here/count.awk" "$TEST_EVENTS"
