#!/usr/bin/env bash
# Runs the suites of tokenstore/sql and fence on database servers that Debian's newer releases
# have, and ends with a table and the line "N passed, N failed". The argument picks servers whose
# name contains it: mysql or mariadb.
#
# The servers are unpacked below .matrix, which git ignores: about 1 GB, once. A newer server
# needs the C library of its release, so it is started with chroot. Both need root, and Debian or a
# similar system. The packages come from the mirror that apt uses.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
only=${1:-}
folder=$PWD/.matrix

# name, release of Debian, package, server, variable that names it to the tests
servers=(
	"mariadb-11.8 trixie mariadb-server-core mariadbd IDEMKEEPER_TEST_MARIADB"
	"mysql-9 sid mysql-server-core mysqld IDEMKEEPER_TEST_MYSQL"
)

give_up() {
	echo "make matrix: $1" >&2
	exit 1
}
((EUID == 0)) || give_up "it needs root, for debootstrap and chroot"
command -v apt-get >/dev/null || give_up "it needs Debian's packages, and this machine has no apt-get"

# The tests of one database have its name at the second level or at the third. Those of the others run
# in every test run.
others='^(PostgreSQL|PgBouncer|SQLite.*)$'

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

server=0
stop() {
	((server)) || return 0
	kill "$server" 2>/dev/null || true
	wait "$server" 2>/dev/null || true
	server=0
}
trap stop EXIT

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# start RELEASE PROGRAM PORT starts a new server. It does not sync to the disk.
start() {
	local root=$folder/$1 data=/srv/matrix
	rm -rf "$root$data"
	mkdir -p -m 777 "$root$data"
	cat >"$root$data/accounts.sql" <<-'SQL'
		CREATE USER IF NOT EXISTS idemkeeper@'%';
		GRANT ALL ON *.* TO idemkeeper@'%' WITH GRANT OPTION;
	SQL
	local options=(--no-defaults --user=nobody --datadir=$data/data --port="$3" --bind-address=127.0.0.1 --socket=$data/s
		--pid-file=$data/pid --init-file=$data/accounts.sql --skip-name-resolve --max-connections=300
		--innodb-buffer-pool-size=64M --innodb-flush-method=nosync --innodb-rollback-on-timeout=ON)
	if [[ $2 == mysqld ]]; then
		options+=(--mysqlx=OFF --secure-file-priv=)
		chroot "$root" mysqld --no-defaults --initialize-insecure --user=nobody --datadir=$data/data
	else
		# Only its server is installed, so the tables of the system are made by hand.
		mkdir -p -m 777 "$root$data/data" "$root$data/data/mysql"
		{
			echo "USE mysql;"
			cat "$root"/usr/share/mariadb/{mariadb_system_tables,mariadb_performance_tables,mariadb_system_tables_data}.sql
		} | chroot "$root" mariadbd --no-defaults --user=nobody --datadir=$data/data --bootstrap --skip-grant-tables
	fi >"$folder/$2.log" 2>&1 || give_up "the server could not be set up, see .matrix/$2.log"
	chroot "$root" "$2" "${options[@]}" >>"$folder/$2.log" 2>&1 &
	server=$!
	for _ in {1..300}; do
		(exec 3<>"/dev/tcp/127.0.0.1/$3") 2>/dev/null && return
		kill -0 "$server" 2>/dev/null || break
		sleep 0.2
	done
	give_up "the server did not start, see .matrix/$2.log"
}

passed=0 failed=0 table=()
for line in "${servers[@]}"; do
	read -r name release package program variable <<<"$line"
	[[ $name == *"$only"* ]] || continue
	unpack "$release" "$package"
	port=$(free_port)
	start "$release" "$program" "$port"
	version=$(chroot "$folder/$release" "$program" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)
	echo "== ${name%-*} $version"
	log=$folder/$name.log
	env "$variable=mysql://idemkeeper@127.0.0.1:$port/" bin/testsummary -race -p 1 -count=1 -timeout "${TIMEOUT:-30m}" \
		-skip "/$others|//$others" ./tokenstore/sql ./fence 2>&1 | tee "$log" || true
	stop
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
