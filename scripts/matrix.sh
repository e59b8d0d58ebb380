#!/usr/bin/env bash
# Runs the tests of stores, locks and joined mode on servers of several generations, and ends with a table and the line
# "N passed, N failed". The argument picks servers whose name contains it, such as valkey or mariadb-11.
#
# The oldest ones are installed (scripts/servers.sh), and the others are unpacked from Debian's newer releases below .matrix,
# which git ignores, each into a directory of its own: about 2 GB, once. That needs no root, but Debian or a similar system.
# The packages come from the mirror that apt uses. The tests start the servers themselves, because some of them kill theirs
# (internal/test/testserver). If a release has no such version any more, its line counts as failed.
#
# docs/upgrading.md and README.md name these versions, and a test compares them with this list.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
only=${1:-}
folder=$PWD/.matrix

sql='./tests/sqlstore ./tests/sqllock ./tests/fence'
redis='./tokenstore/redis ./lock/redis ./tests/stores'
zookeeper='./lock/zookeeper/...'

# Name and version, Debian's release ("installed" if it is that of this machine), its packages, a program that prints the version,
# the tests, and the databases whose tests are left out, by the names of subtests at the second level or the third.
servers=(
	"postgresql-15|installed||postgres|$sql ./tokenstore/sql/pgx|MariaDB.*|MySQL|SQLite.*|PgBouncer"
	"postgresql-17|trixie|postgresql-17|postgres|$sql ./tokenstore/sql/pgx|MariaDB.*|MySQL|SQLite.*|PgBouncer"
	"postgresql-18|sid|postgresql-18|postgres|$sql ./tokenstore/sql/pgx|MariaDB.*|MySQL|SQLite.*|PgBouncer"
	"pgbouncer-1.18|installed||pgbouncer|$sql|MariaDB.*|MySQL|SQLite.*|PostgreSQL"
	"pgbouncer-1.26|sid|pgbouncer|pgbouncer|$sql|MariaDB.*|MySQL|SQLite.*|PostgreSQL"
	"mysql-9.7|sid|mysql-server-core|mysqld|$sql|PostgreSQL|PgBouncer|SQLite.*|MariaDB.*"
	"mariadb-10.11|installed||mariadbd|$sql|PostgreSQL|PgBouncer|SQLite.*|MySQL"
	"mariadb-11.8|trixie|mariadb-server-core mariadb-client-core|mariadbd|$sql|PostgreSQL|PgBouncer|SQLite.*|MySQL"
	"mariadb-galera-11.8|trixie|mariadb-server-core mariadb-client-core galera-4|mariadbd|-run ^TestGalera ./tests/engines|"
	"redis-7.0|installed||redis-server|$redis|"
	"redis-8.0|sid|redis-server redis-sentinel|redis-server|$redis|"
	"valkey-8.1|trixie|valkey-server valkey-sentinel|valkey-server|$redis|"
	"valkey-9.1|sid|valkey-server valkey-sentinel|valkey-server|$redis|"
	"zookeeper-3.8|installed||zookeeper|$zookeeper|"
	"zookeeper-3.9|sid|libzookeeper-java|zookeeper|$zookeeper|"
)

# apt_of RELEASE has the programs of apt use the packages of a release, and nothing of those that this machine has.
apt_of() {
	local own=$folder/apt/$1
	export APT_CONFIG=$own/apt.conf
	[[ -e $own/updated ]] && return
	local from
	from=$(APT_CONFIG='' apt-get indextargets --format '$(ORIGIN) $(LABEL) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
		awk '$1 == "Debian" && $2 == "Debian" && $3 == "main" { print $4; exit }')
	[[ $from ]] || { echo "apt has no mirror of Debian" && return 1; }
	mkdir -p "$own"/{lists/partial,etc/preferences.d,etc/apt.conf.d}
	: >"$own/status"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $from $1 main" >"$own/etc/sources.list"
	# Without a list of installed packages, apt gets all that a server needs, down to the C library. A mirror may be a snapshot
	# of some time ago.
	cat >"$APT_CONFIG" <<-END
		Dir::State "$own"; Dir::State::lists "$own/lists"; Dir::State::status "$own/status"; Dir::Etc "$own/etc";
		Dir::Cache "$own"; Dir::Cache::archives "$folder/packages";
		Acquire::Languages "none"; Acquire::Check-Valid-Until "false"; APT::Install-Recommends "false"; APT::Sandbox::User "";
	END
	apt-get update -q && touch "$own/updated"
}

# unpack NAME RELEASE PACKAGES puts a server and all that it needs below $folder/NAME.
unpack() {
	local root=$folder/$1 file
	mkdir -p "$folder/packages/partial"
	apt_of "$2" || return
	rm -rf "$folder"/packages/*.deb "$root"
	mkdir "$root"
	# The scripts of the packages would add users and start servers, so nothing is installed.
	apt-get install -q -y --download-only -o Debug::NoLocking=true $3 || return
	for file in "$folder"/packages/*.deb; do
		dpkg-deb --fsys-tarfile "$file" | tar -x --no-same-owner -C "$root" --exclude=./usr/share/{doc,man,locale} || return
	done
	rm "$folder"/packages/*.deb
	wrap "$root" && touch "$root/.complete"
}

# wrap ROOT puts a script in the place of each program. It starts the program with the loader and the libraries of its own
# release, because those of this machine are older. A program that looks for others finds them beside the script.
wrap() {
	local loader libraries file
	loader=$(compgen -G "$1/usr/lib/*/ld-linux*.so.*") || loader=$(compgen -G "$1/lib*/ld-linux*.so.*") || return 0 # Java needs neither
	libraries=$(compgen -G "$1/usr/lib/*-linux-gnu*" | paste -sd:)
	for file in "$1"/usr/bin/* "$1"/usr/sbin/* "$1"/usr/lib/postgresql/*/bin/*; do
		[[ -f $file && ! -L $file && $(head -c 4 "$file") == $'\x7fELF' ]] || continue
		mkdir -p "${file%/*}/.programs"
		mv "$file" "${file%/*}/.programs/"
		cat >"$file" <<-END
			#!/bin/sh
			exec '${loader%%$'\n'*}' --library-path '$libraries' --argv0 "\$0" '${file%/*}/.programs/${file##*/}' "\$@"
		END
		chmod 755 "$file"
	done
}

# version_of ROOT PROGRAM prints the version of a server below a directory.
version_of() {
	local file program=
	if [[ $2 == zookeeper ]]; then
		file=$(compgen -G "$1/usr/share/java/zookeeper-[0-9]*.jar") && grep -oE '[0-9]+(\.[0-9]+)+' <<<"${file##*/}"
		return
	fi
	for file in "$1"/usr/bin/$2 "$1"/usr/sbin/$2 "$1"/usr/lib/postgresql/*/bin/$2; do
		[[ ! -x $file ]] || program=$file # the last version, as the tests do
	done
	[[ $program ]] && "$program" --version | sed "s|$program||" | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1
}

passed=0 failed=0 table=()
for line in "${servers[@]}"; do
	IFS='|' read -r name release packages program tests others <<<"$line"
	[[ $name == *"$only"* ]] || continue
	root=$folder/$name log=$folder/$name.log reason=
	[[ $release != installed ]] || root=
	mkdir -p "$folder"
	if [[ $root && ! -e $root/.complete ]]; then
		echo "unpacking $name of Debian $release below .matrix"
		(unpack "$name" "$release" "$packages") >"$log" 2>&1 || reason="could not be unpacked, see .matrix/$name.log"
	fi
	version=$([[ $reason ]] || version_of "$root" "$program") || reason="is not there"
	[[ $reason || $version == "${name##*-}".* ]] || reason="cannot be had: Debian ${release/installed/here} has $version"
	counts="0 passed, 1 failed"
	if [[ $reason ]]; then
		echo "make matrix: $name $reason" >&2
		version="not run"
	else
		echo "== ${name%-*} $version"
		skip=()
		[[ -z $others ]] || skip=(-skip "/^($others)$|//^($others)$")
		# make test has the race detector, and finds with it what is a fault on any server.
		IDEMKEEPER_TEST_ROOT=$root scripts/test.sh -- -p 1 -count=1 -timeout "${TIMEOUT:-30m}" "${skip[@]}" $tests 2>&1 | tee "$log" || true
		[[ $(tail -n 1 "$log") =~ ^[0-9]+\ passed,\ [0-9]+\ failed ]] && counts=${BASH_REMATCH[0]} # otherwise the run itself has failed
	fi
	read -r good _ bad _ <<<"$counts"
	passed=$((passed + good)) failed=$((failed + bad))
	table+=("$(printf '%-12s %-10s %8s %8s' "${name%-*}" "$version" "$good" "$bad")")
done
((${#table[@]})) || { echo "make matrix: no server has $only in its name" >&2 && exit 1; }
printf '%-12s %-10s %8s %8s\n' server version passed failed
printf '%s\n' "${table[@]}"
echo "$passed passed, $failed failed"
((failed == 0))
