package testserver

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
)

// MariaDB is one server of MariaDB or MySQL. Its data survive a Restart.
type MariaDB struct {
	*instance
	addr, dir string
}

// Addr returns "host:port".
func (m *MariaDB) Addr() string { return m.addr }

// URL returns "mysql://user@host:port/". It names no database, because a test makes one of
// its own.
func (m *MariaDB) URL() string { return "mysql://" + mariadbUser + "@" + m.addr + "/" }

// SharedMariaDB returns the URL of the test binary's MariaDB: the one named by
// IDEMKEEPER_TEST_MARIADB, otherwise of a server started at the first call, which does not
// sync to disk. Keep to a database of your own.
func SharedMariaDB(tb testing.TB) string {
	tb.Helper()
	return shareMariaDB(tb, &shared.mariadb, EnvMariaDB, mariadb)
}

// SharedMySQL is SharedMariaDB for MySQL, with IDEMKEEPER_TEST_MYSQL. Debian 12 has no MySQL, so the test is
// skipped as not run here unless the environment names a server or the directory of one.
func SharedMySQL(tb testing.TB) string {
	tb.Helper()
	if os.Getenv(EnvMySQL) == "" {
		needsMySQL(tb)
	}
	return shareMariaDB(tb, &shared.mysql, EnvMySQL, mysql)
}

func shareMariaDB(tb testing.TB, s *sharedServer[string], env string, maker mariadbMaker) string {
	tb.Helper()
	return share(tb, s, env, func(named string) (string, error) {
		if named != "" {
			u, err := url.Parse(named)
			if err != nil || u.Host == "" {
				return "", fmt.Errorf("testserver: %s names no server: want mysql://user:password@host:port/", env)
			}
			return named, anyReachable([]string{u.Host})
		}
		m, held, err := launchMariaDB(maker, "--innodb-flush-method=nosync")
		if err != nil {
			return "", err
		}
		stopLater(m.instance, held.release)
		shared.stop = append(shared.stop, func() { os.RemoveAll(m.dir) })
		return m.URL(), nil
	})
}

// StartMariaDB starts a server and returns once it answers. It syncs to disk, as in production.
// It is killed in the test's clean-up. settings are further arguments of the server.
func StartMariaDB(tb testing.TB, settings ...string) *MariaDB {
	tb.Helper()
	return startMariaDB(tb, mariadb, settings)
}

// StartMySQL is StartMariaDB for MySQL. Unless the environment names its directory, the test is skipped as not
// run here.
func StartMySQL(tb testing.TB, settings ...string) *MariaDB {
	tb.Helper()
	needsMySQL(tb)
	return startMariaDB(tb, mysql, settings)
}

func needsMySQL(tb testing.TB) {
	tb.Helper()
	p, err := mysql.find()
	if server, _ := filepath.EvalSymlinks(p.server); err != nil || filepath.Base(server) != "mysqld" { // Debian has a link of this name to MariaDB
		tb.Skip(NotRunHere + "there is no MySQL to start: see make matrix")
	}
}

func startMariaDB(tb testing.TB, maker mariadbMaker, settings []string) *MariaDB {
	tb.Helper()
	needsServer(tb)
	m, held, err := launchMariaDB(maker, settings...)
	if err != nil {
		tb.Fatalf("%v (%s)", err, installHint)
	}
	tb.Cleanup(func() { os.RemoveAll(m.dir) })
	tb.Cleanup(held.release)
	m.own(tb)
	return m
}

func launchMariaDB(maker mariadbMaker, settings ...string) (*MariaDB, *ports, error) {
	p, err := maker.find()
	if err != nil {
		return nil, nil, err
	}
	attr, owner, err := serverUser("mysql")
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "idemkeeper-mariadb-") // as for PostgreSQL
	if err != nil {
		return nil, nil, err
	}
	m := &MariaDB{dir: dir}
	held, err := m.launch(p, settings, attr, owner)
	if err != nil {
		os.RemoveAll(dir)
	}
	return m, held, err
}

func (m *MariaDB) launch(p mariadbProgram, settings []string, attr *syscall.SysProcAttr, owner func(string) error) (*ports, error) {
	// A starting server deletes the temporary tables that it finds, also those of others.
	data, temp := filepath.Join(m.dir, "data"), filepath.Join(m.dir, "temp")
	if err := os.Mkdir(temp, 0o700); err != nil {
		return nil, err
	}
	if err := errors.Join(owner(m.dir), owner(temp)); err != nil {
		return nil, err
	}
	cmd := p.install(data, temp)
	cmd.Dir, cmd.SysProcAttr = m.dir, attr
	if err := prepared(cmd, data); err != nil {
		return nil, err
	}
	accounts := filepath.Join(m.dir, "accounts.sql")
	grant := "CREATE USER IF NOT EXISTS " + mariadbUser + "@'%';\nGRANT ALL ON *.* TO " + mariadbUser + "@'%' WITH GRANT OPTION;\n"
	if err := os.WriteFile(accounts, []byte(grant), 0o644); err != nil {
		return nil, err
	}
	return retryOnBind(1, func(nums []int) error {
		m.addr = loopback(nums[0])
		pid := filepath.Join(m.dir, "server.pid")
		args := p.args("--datadir="+data, "--tmpdir="+temp, "--port="+strconv.Itoa(nums[0]), "--bind-address=127.0.0.1",
			"--socket="+filepath.Join(m.dir, "s"), "--pid-file="+pid, "--init-file="+accounts,
			"--skip-name-resolve", "--innodb-buffer-pool-size=64M", "--max-connections=300")
		m.instance = &instance{
			prog: program{
				name: string(p.maker) + " " + m.addr, path: p.server, dir: m.dir, log: filepath.Join(m.dir, "server.log"), attr: attr,
				args: append(args, settings...),
			},
			ready: func(process int) error { return p.maker.serves(m.addr, pid, process) },
		}
		return m.start()
	})
}
