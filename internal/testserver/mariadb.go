package testserver

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// mariadbUser is the account of the tests. It has all rights and no password.
const mariadbUser = "idemkeeper"

// MariaDB is one MariaDB server. Its data survive a Restart.
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
	return share(tb, &shared.mariadb, EnvMariaDB, func(named string) (string, error) {
		if named != "" {
			u, err := url.Parse(named)
			if err != nil {
				return "", fmt.Errorf("testserver: %s is not a URL", EnvMariaDB)
			}
			return named, anyReachable([]string{u.Host})
		}
		m, held, err := launchMariaDB("--innodb-flush-method=nosync")
		if err != nil {
			return "", err
		}
		stopLater(m.instance, held)
		shared.stop = append(shared.stop, func() { os.RemoveAll(m.dir) })
		return m.URL(), nil
	})
}

// SharedMySQL returns the URL of the MySQL server that IDEMKEEPER_TEST_MYSQL names, as make matrix
// does. Debian 12 has none to start, so without that the test is skipped as not run here.
func SharedMySQL(tb testing.TB) string {
	tb.Helper()
	needsServer(tb)
	named := os.Getenv(EnvMySQL)
	if named == "" {
		tb.Skip(NotRunHere + EnvMySQL + " names no MySQL: see make matrix")
	}
	u, err := url.Parse(named)
	if err != nil || u.Host == "" {
		tb.Fatalf("testserver: %s names no MySQL server: want mysql://user:password@host:port/", EnvMySQL)
	}
	if err := anyReachable([]string{u.Host}); err != nil {
		tb.Fatalf("testserver: %s: %v", EnvMySQL, err)
	}
	return named
}

// StartMariaDB starts a server and returns once it answers. It syncs to disk, as in production.
// It is killed in the test's clean-up. settings are further arguments of the server.
func StartMariaDB(tb testing.TB, settings ...string) *MariaDB {
	tb.Helper()
	needsServer(tb)
	m, held, err := launchMariaDB(settings...)
	if err != nil {
		tb.Fatalf("%v (%s)", err, installHint)
	}
	tb.Cleanup(func() { os.RemoveAll(m.dir) })
	tb.Cleanup(held.release)
	m.own(tb)
	return m
}

func launchMariaDB(settings ...string) (*MariaDB, *ports, error) {
	server, err := findProgram("mariadbd", "/usr/sbin/mariadbd")
	if err != nil {
		return nil, nil, err
	}
	install, err := findProgram("mariadb-install-db", "/usr/bin/mariadb-install-db")
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
	held, err := m.launch(server, install, settings, attr, owner)
	if err != nil {
		os.RemoveAll(dir)
	}
	return m, held, err
}

func (m *MariaDB) launch(server, install string, settings []string, attr *syscall.SysProcAttr, owner func(string) error) (*ports, error) {
	// A starting server deletes the temporary tables that it finds, also those of others.
	data, temp := filepath.Join(m.dir, "data"), filepath.Join(m.dir, "temp")
	if err := os.Mkdir(temp, 0o700); err != nil {
		return nil, err
	}
	if err := errors.Join(owner(m.dir), owner(temp)); err != nil {
		return nil, err
	}
	cmd := exec.Command(install, "--no-defaults", "--datadir="+data, "--tmpdir="+temp, "--auth-root-authentication-method=normal", "--skip-test-db")
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
		m.instance = &instance{
			prog: program{
				name: "mariadb " + m.addr, path: server, dir: m.dir, log: filepath.Join(m.dir, "server.log"), attr: attr,
				args: append([]string{
					"--no-defaults", "--datadir=" + data, "--tmpdir=" + temp, "--port=" + strconv.Itoa(nums[0]), "--bind-address=127.0.0.1",
					"--socket=" + filepath.Join(m.dir, "s"), "--pid-file=" + pid, "--init-file=" + accounts,
					"--skip-name-resolve", "--innodb-buffer-pool-size=64M",
					"--max-connections=300", "--performance-schema=OFF",
				}, settings...),
			},
			ready: func(process int) error { return mariadbServes(m.addr, pid, process) },
		}
		return m.start()
	})
}

// mariadbServes returns nil if this process has written its file, and greets a client. The
// file also excludes a foreign server.
func mariadbServes(addr, pidFile string, pid int) error {
	data, err := os.ReadFile(pidFile)
	if err != nil {
		return err
	}
	if got := strings.TrimSpace(string(data)); got != strconv.Itoa(pid) {
		return fmt.Errorf("process %s has the data", got)
	}
	conn, err := net.DialTimeout("tcp", addr, askTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(askTimeout)); err != nil {
		return err
	}
	greeting := make([]byte, 128)
	n, err := conn.Read(greeting)
	if err != nil {
		return err
	}
	// A packet has a header of 4 bytes, and the greeting begins with the protocol's version.
	if !bytes.Contains(greeting[:n], []byte("MariaDB")) || n < 5 || greeting[4] != 10 {
		return fmt.Errorf("unexpected greeting %q", greeting[:n])
	}
	return nil
}

// findProgram looks a program up by name, then at its place in Debian, which may not be in
// the PATH.
func findProgram(name, place string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	if _, err := os.Stat(place); err != nil {
		return "", fmt.Errorf("testserver: %s is not installed: %s", name, installHint)
	}
	return place, nil
}

// serverUser returns how to start a server that does not run as root, and what gives a
// directory to its user. Debian's packages add the users.
func serverUser(name string) (*syscall.SysProcAttr, func(dir string) error, error) {
	attr := ChildAttr()
	if os.Geteuid() != 0 {
		return attr, func(string) error { return nil }, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, nil, fmt.Errorf("testserver: the server does not run as root: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, nil, err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, func(dir string) error { return os.Chown(dir, int(uid), int(gid)) }, nil
}
