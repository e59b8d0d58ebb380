package testserver

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// mariadbUser is the account of the tests. It has all rights and no password.
const mariadbUser = "idemkeeper"

// mariadbMaker says which of the two related servers.
type mariadbMaker string

const (
	mariadb mariadbMaker = "mariadb"
	mysql   mariadbMaker = "mysql"
)

// mariadbProgram is a server that is installed, or unpacked below a directory.
type mariadbProgram struct {
	maker   mariadbMaker
	command []string // the server, without arguments
	root    string   // the directory, or ""
	make    string   // what makes an empty data directory, if the server is installed
}

// find returns the server below the directory that the environment names, otherwise the installed one.
func (maker mariadbMaker) find() (mariadbProgram, error) {
	root, name := os.Getenv(EnvMariaDBRoot), "mariadbd"
	if maker == mysql {
		root, name = os.Getenv(EnvMySQLRoot), "mysqld"
	}
	if root != "" {
		return unpacked(maker, root, name)
	}
	server, err := findProgram(name, "/usr/sbin/"+name)
	if err != nil {
		return mariadbProgram{}, err
	}
	install, err := findProgram("mariadb-install-db", "/usr/bin/mariadb-install-db")
	return mariadbProgram{maker: maker, command: []string{server}, make: install}, err
}

// unpacked finds a server of another release. It needs the C library of its release, so the loader of that starts it.
func unpacked(maker mariadbMaker, root, name string) (mariadbProgram, error) {
	loaders, _ := filepath.Glob(filepath.Join(root, "lib*", "ld-linux*.so.*")) // the pattern is valid
	libraries, _ := filepath.Glob(filepath.Join(root, "usr", "lib", "*-linux-gnu*"))
	server := filepath.Join(root, "usr", "sbin", name)
	if _, err := os.Stat(server); err != nil || len(loaders) == 0 || len(libraries) == 0 || !filepath.IsAbs(root) {
		return mariadbProgram{}, fmt.Errorf("testserver: %q is not the absolute path of a directory with %s of another release: see make matrix", root, name)
	}
	return mariadbProgram{
		maker: maker, root: root,
		command: []string{loaders[0], "--library-path", strings.Join(libraries, ":"), server},
	}, nil
}

// server returns a command that reads no configuration.
func (p mariadbProgram) server(args ...string) []string {
	command := append([]string{}, p.command...)
	command = append(command, "--no-defaults")
	if p.root != "" {
		command = append(command, "--basedir="+filepath.Join(p.root, "usr"))
	}
	if p.maker == mysql {
		command = append(command, "--mysqlx=OFF", "--secure-file-priv=")
	} else {
		command = append(command, "--performance-schema=OFF")
	}
	return append(command, args...)
}

// install returns a command that makes an empty data directory.
func (p mariadbProgram) install(data, temp string) *exec.Cmd {
	switch {
	case p.make != "":
		return exec.Command(p.make, "--no-defaults", "--datadir="+data, "--tmpdir="+temp, "--auth-root-authentication-method=normal", "--skip-test-db")
	case p.maker == mysql:
		command := p.server("--initialize-insecure", "--datadir="+data, "--tmpdir="+temp)
		return exec.Command(command[0], command[1:]...)
	}
	// mariadb-install-db finds no server that needs a loader, so this does the same.
	const script = `mkdir -p -m 700 "$1" "$1/mysql" && cd "$2/usr/share/mariadb" || exit 1
files="mariadb_system_tables.sql mariadb_performance_tables.sql mariadb_system_tables_data.sql"
shift 2
{ echo "USE mysql;"; cat $files; } | "$@"`
	args := []string{"-c", script, "sh", data, p.root}
	return exec.Command("/bin/sh", append(args, p.server("--bootstrap", "--skip-grant-tables", "--datadir="+data, "--tmpdir="+temp)...)...)
}

// serves returns nil if this process has written its file, and greets a client. The
// file also excludes a foreign server.
func (maker mariadbMaker) serves(addr, pidFile string, pid int) error {
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
	if bytes.Contains(greeting[:n], []byte("MariaDB")) != (maker == mariadb) || n < 5 || greeting[4] != 10 {
		return fmt.Errorf("unexpected greeting %q", greeting[:n])
	}
	return nil
}
