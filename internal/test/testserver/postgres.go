package testserver

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// SharedPostgres returns the URL of a database of the test binary's PostgreSQL:
// the one named by IDEMKEEPER_TEST_POSTGRES, otherwise of a server started at
// the first call, which does not sync to disk. Keep to a schema of your own.
//
// PostgreSQL does not run as root. There the server runs as the user postgres,
// whom Debian's package adds.
func SharedPostgres(tb testing.TB) string {
	tb.Helper()
	return share(tb, &shared.postgres, EnvPostgres, func(named string) (string, error) {
		if named != "" {
			u, err := url.Parse(named)
			if err != nil {
				return "", err
			}
			return named, anyReachable([]string{u.Host})
		}
		p, held, err := launchPostgres(nil, initPostgres, "-c", "fsync=off", "-c", "autovacuum=off") // its workers visit each database
		if err != nil {
			return "", err
		}
		stopLater(p.instance, held.release)
		shared.stop = append(shared.stop, func() { os.RemoveAll(p.dir) })
		return p.URL(), nil
	})
}

// Postgres is one PostgreSQL server. Its data survive a Restart and a Kill.
type Postgres struct {
	*instance
	addr, dir string
}

// Addr returns "host:port".
func (p *Postgres) Addr() string { return p.addr }

// URL returns the URL of a database.
func (p *Postgres) URL() string {
	return "postgres://idemkeeper@" + p.addr + "/postgres?sslmode=disable"
}

// Kill ends the server and the processes of its connections at once (SIGKILL), as the crash of
// a machine would, and waits for their ends. Otherwise a connection would go on answering until
// its process notices the end of the server. It does nothing if the server is down.
func (p *Postgres) Kill() {
	p.tb.Helper()
	if !p.answering() {
		p.instance.Kill()
		return
	}
	p.Pause() // it starts no process after the list was made
	children := childrenOf(p.PID())
	p.instance.Kill()
	for _, child := range children {
		_ = syscall.Kill(child, syscall.SIGKILL) // it may have ended
	}
	for _, child := range children {
		p.check(poll(exitTimeout, nil, func() error {
			if !gone(child) {
				return fmt.Errorf("process %d of %s is there", child, p.prog.name)
			}
			return nil
		}))
	}
}

// Stop ends the server and its connections (SIGINT, a fast shutdown), and waits for its exit.
func (p *Postgres) Stop() {
	p.tb.Helper()
	p.check(p.end(syscall.SIGINT))
}

// Restart is Stop, and a start on the same port and data.
func (p *Postgres) Restart() {
	p.tb.Helper()
	p.Stop()
	p.check(p.start())
}

// RecoverDisk makes room after FillDisk, and is Restart.
func (p *Postgres) RecoverDisk() {
	p.tb.Helper()
	p.makeRoom()
	p.Restart()
}

// StartPostgres starts a server and returns once it answers. It syncs to disk, as in production.
// It is killed in the test's clean-up. settings are further arguments of the server.
func StartPostgres(tb testing.TB, settings ...string) *Postgres {
	tb.Helper()
	needsServer(tb)
	return ownPostgres(tb, nil, initPostgres, settings...)
}

// StartPostgresOn is StartPostgres on a [Machine].
func StartPostgresOn(tb testing.TB, m *Machine) *Postgres {
	tb.Helper()
	needsServer(tb)
	return ownPostgres(tb, m, func(bin, data string) *exec.Cmd {
		cmd := initPostgres(bin, data)
		cmd.Args = append(cmd.Args, "--wal-segsize=1") // MB, so that a full disk is felt soon
		return cmd
	}, "-c", "min_wal_size=2MB", "-c", "max_wal_size=64MB")
}

// StartStandby starts a server that replicates from another one and answers reads. source is
// "host:port" of that server, or of a proxy in front of it. SELECT pg_promote() makes it a primary.
func StartStandby(tb testing.TB, source string) *Postgres {
	tb.Helper()
	needsServer(tb)
	return ownPostgres(tb, nil, func(bin, data string) *exec.Cmd {
		return exec.Command(filepath.Join(bin, "pg_basebackup"), "-D", data, "-R", "-X", "stream", "-c", "fast",
			"-d", "postgres://idemkeeper@"+source+"/postgres?sslmode=disable")
	})
}

func ownPostgres(tb testing.TB, m *Machine, prepare func(bin, data string) *exec.Cmd, settings ...string) *Postgres {
	tb.Helper()
	p, held, err := launchPostgres(m, prepare, settings...)
	if err != nil {
		tb.Fatalf("%v (%s)", err, installHint)
	}
	tb.Cleanup(func() { os.RemoveAll(p.dir) })
	tb.Cleanup(held.release)
	p.own(tb)
	return p
}

// initPostgres makes the data directory of an empty server.
func initPostgres(bin, data string) *exec.Cmd {
	return exec.Command(filepath.Join(bin, "initdb"), "-D", data, "-U", "idemkeeper", "-A", "trust", "-N", "-E", "UTF8", "--locale=C")
}

func launchPostgres(m *Machine, prepare func(bin, data string) *exec.Cmd, settings ...string) (*Postgres, *ports, error) {
	initdb, err := findProgram("initdb")
	if err == nil {
		initdb, err = filepath.EvalSymlinks(initdb) // the other programs are next to it
	}
	if err != nil {
		return nil, nil, err
	}
	bin := filepath.Dir(initdb)
	attr, owner, err := serverUser("postgres")
	if err != nil {
		return nil, nil, err
	}
	// Not below the shared directory, which only this user can enter.
	dir, err := os.MkdirTemp("", "idemkeeper-postgres-")
	if err != nil {
		return nil, nil, err
	}
	p := &Postgres{dir: dir}
	held, err := func() (*ports, error) {
		if err := owner(dir); err != nil {
			return nil, err
		}
		data := filepath.Join(dir, "data")
		var hw hardware
		var env []string
		if m != nil {
			m.tb.Cleanup(func() { os.RemoveAll(dir) }) // after equip's clean-up has unmounted the disk in it
			var err error
			if hw, env, err = m.equip(bin, dir, databaseDisk); err != nil {
				return nil, err
			}
			data = filepath.Join(dir, "disk", "data")
		}
		cmd := prepare(bin, data)
		cmd.Dir, cmd.SysProcAttr = dir, attr
		build := prepared
		if filepath.Base(cmd.Path) != "initdb" { // a standby has the data of its own primary
			build = func(cmd *exec.Cmd, _ string) error { return run(cmd) }
		}
		if err := build(cmd, data); err != nil {
			return nil, err
		}
		return retryOnBind(1, func(nums []int) error {
			p.addr = loopback(nums[0])
			p.instance = &instance{
				prog: program{
					name: "postgres " + p.addr, path: filepath.Join(bin, "postgres"), dir: dir,
					log: filepath.Join(dir, "server.log"), attr: attr, env: env,
					args: append([]string{
						"-D", data, "-p", strconv.Itoa(nums[0]), "-c", "listen_addresses=127.0.0.1",
						"-c", "unix_socket_directories=", "-c", "max_connections=200",
					}, settings...),
				},
				hardware: hw,
				ready:    func(pid int) error { return postgresServes(p.addr, filepath.Join(data, "postmaster.pid"), pid) },
			}
			return p.start()
		})
	}()
	if err != nil {
		os.RemoveAll(dir)
	}
	return p, held, err
}

// postgresServes returns nil if the server says in its own file that this
// process is ready, and answers. The file also excludes a foreign server.
func postgresServes(addr, pidFile string, pid int) error {
	lines, err := fileLines(pidFile)
	if err != nil {
		return err
	}
	const status = 7 // the line of postmaster.pid that tells the state
	if len(lines) <= status || lines[0] != strconv.Itoa(pid) || !slices.Contains([]string{"ready", "standby"}, strings.TrimSpace(lines[status])) {
		return errors.New("not ready yet")
	}
	conn, err := net.DialTimeout("tcp", addr, askTimeout)
	if err != nil {
		return err
	}
	return conn.Close()
}
