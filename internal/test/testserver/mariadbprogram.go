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

// mariadbProgram is a server that is installed, or unpacked below the directory that EnvRoot names.
type mariadbProgram struct {
	maker  mariadbMaker
	server string // the path of the program
	make   string // of what makes an empty data directory for MariaDB
}

func (maker mariadbMaker) find() (p mariadbProgram, err error) {
	p.maker = maker
	if maker == mysql {
		p.server, err = findProgram("mysqld")
		return p, err
	}
	if p.server, err = findProgram("mariadbd"); err == nil {
		p.make, err = findProgram("mariadb-install-db")
	}
	return p, err
}

// here returns the argument by which a program that was unpacked finds its own files.
func (p mariadbProgram) here() []string {
	if root := below(p.server); root != "" {
		return []string{"--basedir=" + filepath.Join(root, "usr")}
	}
	return nil
}

// args returns the arguments of a server that reads no configuration.
func (p mariadbProgram) args(args ...string) []string {
	own := append([]string{"--no-defaults"}, p.here()...)
	if p.maker == mysql {
		own = append(own, "--mysqlx=OFF", "--secure-file-priv=")
	} else {
		own = append(own, "--performance-schema=OFF")
	}
	return append(own, args...)
}

// install returns a command that makes an empty data directory.
func (p mariadbProgram) install(data, temp string) *exec.Cmd {
	if p.maker == mysql {
		return exec.Command(p.server, p.args("--initialize-insecure", "--datadir="+data, "--tmpdir="+temp)...)
	}
	args := append([]string{"--no-defaults"}, p.here()...)
	return exec.Command(p.make, append(args, "--datadir="+data, "--tmpdir="+temp, "--auth-root-authentication-method=normal", "--skip-test-db")...)
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
