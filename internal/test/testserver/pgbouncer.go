package testserver

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// PgBouncer is a pooler in front of one PostgreSQL server. Its clients' requests to cancel a statement
// are lost on their way, because PgBouncer 1.18 ends itself, with "bad client state: 0", when such a
// connection is cut while the request is on its way to the server
// (https://github.com/pgbouncer/pgbouncer/pull/846).
type PgBouncer struct {
	*instance
	addr    string
	clients *Proxy
	server  *url.URL
}

// URL returns the URL of a database of its server, through the pooler. PgBouncer gives each
// transaction another session, which may not have the prepared statements of the client. So pgx
// has to send every statement with its text.
func (p *PgBouncer) URL(database string) string {
	u := *p.server
	u.Host, u.Path, u.RawQuery = p.clients.Addr(), "/"+database, "sslmode=disable&default_query_exec_mode=exec"
	return u.String()
}

// StartPgBouncer starts a pooler in front of the server of a postgres:// URL. It gives each
// transaction another session. settings are further lines of its configuration, such as
// "pool_mode = session".
func StartPgBouncer(tb testing.TB, server string, settings ...string) *PgBouncer {
	tb.Helper()
	needsServer(tb)
	p, end, err := launchPgBouncer(server, settings...)
	if err != nil {
		tb.Fatalf("%v (%s)", err, installHint)
	}
	tb.Cleanup(end)
	p.own(tb)
	return p
}

// SharedPgBouncer returns a pooler of transactions in front of [SharedPostgres].
func SharedPgBouncer(tb testing.TB) *PgBouncer {
	tb.Helper()
	server := SharedPostgres(tb)
	return share(tb, &shared.pgbouncer, "", func(string) (*PgBouncer, error) {
		p, end, err := launchPgBouncer(server)
		if err != nil {
			return nil, err
		}
		stopLater(p.instance, end)
		return p, nil
	})
}

// launchPgBouncer returns a running pooler, and what is to be called when its process has ended.
func launchPgBouncer(server string, settings ...string) (p *PgBouncer, end func(), err error) {
	path, err := findProgram("pgbouncer")
	if err != nil {
		return nil, nil, err
	}
	u, err := url.Parse(server)
	if err != nil {
		return nil, nil, err
	}
	attr, owner, err := serverUser("postgres")
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp("", "idemkeeper-pgbouncer-")
	if err != nil {
		return nil, nil, err
	}
	p = &PgBouncer{server: u}
	held, err := retryOnBind(1, func(nums []int) error {
		p.addr = loopback(nums[0])
		host, port, err := net.SplitHostPort(u.Host)
		if err != nil {
			return err
		}
		password, _ := u.User.Password()
		conf := []string{
			"[databases]", fmt.Sprintf("* = host=%s port=%s", host, port),
			"[pgbouncer]", "listen_addr = 127.0.0.1", fmt.Sprintf("listen_port = %d", nums[0]), "unix_socket_dir =",
			"auth_type = trust", "auth_file = users.txt", "pool_mode = transaction", "max_client_conn = 1000",
			"default_pool_size = 20", "ignore_startup_parameters = extra_float_digits", "log_connections = 0", "log_disconnections = 0",
		}
		for name, text := range map[string]string{
			"pgbouncer.ini": strings.Join(append(conf, settings...), "\n") + "\n",
			"users.txt":     fmt.Sprintf("%q %q\n", u.User.Username(), password),
		} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				return err
			}
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			return err
		}
		if err := owner(dir); err != nil {
			return err
		}
		p.instance = &instance{
			prog: program{
				name: "pgbouncer " + p.addr, path: path, dir: dir, log: filepath.Join(dir, "server.log"), attr: attr,
				args: []string{"pgbouncer.ini"},
			},
			ready: func(int) error {
				conn, err := net.DialTimeout("tcp", p.addr, askTimeout)
				if err != nil {
					return err
				}
				return conn.Close()
			},
		}
		return p.start()
	})
	if err != nil {
		os.RemoveAll(dir)
		return nil, nil, err
	}
	ended := func() {
		held.release()
		os.RemoveAll(dir)
	}
	clients, clientsHeld, err := launchProxy(p.addr, poolerFraming{})
	if err != nil {
		_ = p.end(syscall.SIGKILL)
		ended()
		return nil, nil, err
	}
	p.clients = clients
	return p, func() {
		clients.close()
		clientsHeld.release()
		ended()
	}, nil
}
