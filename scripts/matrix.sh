#!/usr/bin/env bash
# Runs the suites of tokenstore/sql, lock/sql and fence (tests/sqlstore, tests/sqllock and tests/fence) on database servers that Debian's newer releases
# have, and ends with a table and the line "N passed, N failed". The argument picks servers whose
# name contains it: mysql or mariadb.
#
# The servers are unpacked below .matrix, which git ignores: about 1 GB, once. That needs root, and Debian or a
# similar system. The packages come from the mirror that apt uses. The tests start the servers themselves, because
# some of them kill theirs (internal/test/testserver).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
only=${1:-}
folder=$PWD/.matrix

# name, release of Debian, package, server, variable that names its directory to the tests, name that the tests of the other server have
servers=(
	"mariadb-11.8 trixie mariadb-server-core mariadbd IDEMKEEPER_TEST_MARIADB_ROOT MySQL"
	"mysql-9 sid mysql-server-core mysqld IDEMKEEPER_TEST_MYSQL_ROOT MariaDB"
)

give_up() {
	echo "make matrix: $1" >&2
	exit 1
}
((EUID == 0)) || give_up "it needs root, for debootstrap and chroot"
command -v apt-get >/dev/null || give_up "it needs Debian's packages, and this machine has no apt-get"

# The tests of one database have its name at the second level or at the third. Those of the others run
# in every test run.
others='PostgreSQL|PgBouncer|SQLite.*'

# mirror prints the address from which apt gets the packages of Debian.
mirror() {
	apt-get indextargets --format '$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
		awk '$1 == "Debian" && $2 == "Debian" && $3 == "main" { print $4; exit }'
}

# unpack RELEASE PACKAGE puts a package and what it needs below $folder/RELEASE.
unpack() {
	local root=$folder/$1
	[[ -e $root/.has-$2 ]] && return
	if ! command -v debootstrap >/dev/null; then
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends debootstrap >/dev/null
	fi
	echo "unpacking $2 of Debian $1 below .matrix"
	local from
	from=$(mirror)
	[[ -n $from ]] || give_up "apt has no mirror of Debian"
	rm -rf "$root"
	mkdir -p "$folder"
	{
		debootstrap --variant=minbase "$1" "$root" "$from" &&
			DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y --no-install-recommends "$2"
	} >"$folder/$1.log" 2>&1 || give_up "unpacking failed, see .matrix/$1.log"
	touch "$root/.has-$2"
}

passed=0 failed=0 table=()
for line in "${servers[@]}"; do
	read -r name release package program variable other <<<"$line"
	[[ $name == *"$only"* ]] || continue
	unpack "$release" "$package"
	version=$(chroot "$folder/$release" "$program" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)
	echo "== ${name%-*} $version"
	log=$folder/$name.log
	env "$variable=$folder/$release" scripts/test.sh -- -race -p 1 -count=1 -timeout "${TIMEOUT:-30m}" \
		-skip "/^($others|$other)$|//^($others|$other)$" ./tests/sqlstore ./tests/sqllock ./tests/fence 2>&1 | tee "$log" || true
	counts=$(tail -n 1 "$log")
	[[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]] || counts="0 passed, 1 failed" # the run itself has failed
	[[ $counts =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]]
	passed=$((passed + BASH_REMATCH[1])) failed=$((failed + BASH_REMATCH[2]))
	table+=("$(printf '%-10s %-10s %8s %8s' "${name%-*}" "$version" "${BASH_REMATCH[1]}" "${BASH_REMATCH[2]}")")
done
((${#table[@]})) || give_up "no server has $only in its name"
printf '%-10s %-10s %8s %8s\n' server version passed failed
printf '%s\n' "${table[@]}"
echo "$passed passed, $failed failed"
((failed == 0))
