#!/usr/bin/env bash
# Checks the servers and tools for the tests: ZooKeeper's jar, Java, Redis, Sentinel,
# PostgreSQL, PgBouncer, MariaDB, nginx, HAProxy, Chromium, promtool, spin for the model, faketime for chaos,
# a C compiler, and the languages of examples/clients. On Debian and similar systems it installs the missing packages, as root
# or by sudo without a password. On other systems it names them and exits 1.
#
# IDEMKEEPER_TEST_ZOOKEEPER, IDEMKEEPER_TEST_REDIS, IDEMKEEPER_TEST_POSTGRES and
# IDEMKEEPER_TEST_MARIADB name running servers to use instead. Debian 12 has no MySQL, so
# its tests run only if IDEMKEEPER_TEST_MYSQL names one, or if IDEMKEEPER_TEST_ROOT names the directory of one to
# start, as make matrix does. Tests that break their servers still start their own, and fail if they cannot.
set -euo pipefail

zookeeper_jar=/usr/share/java/zookeeper.jar

# missing prints the Debian packages to install.
missing() {
	if [[ -z ${IDEMKEEPER_TEST_ZOOKEEPER:-} ]]; then
		command -v java >/dev/null || echo default-jre-headless
		# The package zookeeper would add scripts, and a Java with a desktop.
		[[ -e $zookeeper_jar ]] || echo libzookeeper-java
	fi
	if [[ -z ${IDEMKEEPER_TEST_REDIS:-} ]]; then
		command -v redis-server >/dev/null || echo redis-server
		command -v redis-sentinel >/dev/null || echo redis-sentinel
	fi
	if [[ -z ${IDEMKEEPER_TEST_POSTGRES:-} ]]; then
		compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null || echo postgresql
	fi
	command -v pgbouncer >/dev/null || [[ -x /usr/sbin/pgbouncer ]] || echo pgbouncer
	if [[ -z ${IDEMKEEPER_TEST_MARIADB:-} ]]; then
		command -v mariadbd >/dev/null || [[ -x /usr/sbin/mariadbd ]] || echo mariadb-server
	fi
	if ! command -v chromium >/dev/null && ! command -v chromium-browser >/dev/null && ! command -v google-chrome >/dev/null &&
		! command -v headless-shell >/dev/null; then
		echo chromium
	fi
	command -v promtool >/dev/null || echo prometheus # checks the alert rules
	command -v haproxy >/dev/null || [[ -x /usr/sbin/haproxy ]] || echo haproxy
	command -v nginx >/dev/null || [[ -x /usr/sbin/nginx ]] || echo nginx-light
	if ! command -v "${CC:-gcc}" >/dev/null; then
		echo gcc
		echo libc6-dev
	fi
	command -v spin >/dev/null || echo spin
	[[ -e /usr/share/java/curator-recipes.jar ]] || echo libcurator-recipes-java # a peer in make bench
	# It steps the clocks of servers in tests.
	compgen -G '/usr/lib/*/faketime/libfaketimeMT.so.1' >/dev/null || echo libfaketime
	command -v curl >/dev/null || echo curl
	command -v python3 >/dev/null || echo python3
	command -v node >/dev/null || echo nodejs
	[[ $(java --list-modules 2>/dev/null) == *jdk.compiler* ]] || echo default-jdk-headless
}

mapfile -t packages < <(missing)
if ((${#packages[@]} == 0)); then
	exit 0
fi

give_up() {
	echo "The tests need these Debian packages, and $1: ${packages[*]}" >&2
	echo "Install them, or name running servers in IDEMKEEPER_TEST_ZOOKEEPER=host:port,host:port," >&2
	echo "IDEMKEEPER_TEST_REDIS=redis://host:port/0, IDEMKEEPER_TEST_POSTGRES=postgres://user@host:port/database" >&2
	echo "and IDEMKEEPER_TEST_MARIADB=mysql://user:password@host:port/." >&2
	exit 1
}

command -v apt-get >/dev/null || give_up "this machine has no apt-get"
as_root=()
if ((EUID != 0)); then
	sudo -n true 2>/dev/null || give_up "this user may not install"
	as_root=(sudo -n)
fi

echo "installing ${packages[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
{
	"${install[@]}" update &&
		"${install[@]}" install -y --no-install-recommends "${packages[@]}"
} >"$log" 2>&1 || {
	cat "$log" >&2
	give_up "apt-get could not install them"
}

# Debian starts them as services. The tests start their own servers on free ports, so
# stop the services.
for service in redis-server redis-sentinel postgresql pgbouncer mariadb-server haproxy nginx-light; do
	if [[ " ${packages[*]} " == *" $service "* ]]; then
		service=${service/mariadb-server/mariadb} service=${service/nginx-light/nginx}
		if [[ -d /run/systemd/system ]]; then
			"${as_root[@]}" systemctl disable --now "$service" >/dev/null 2>&1 || true
		else
			"${as_root[@]}" service "$service" stop >/dev/null 2>&1 || true
		fi
	fi
done

mapfile -t packages < <(missing)
((${#packages[@]} == 0)) || give_up "they are still missing after the installation"
