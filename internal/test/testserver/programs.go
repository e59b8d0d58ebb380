package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// EnvRoot names the directory of a server of another release, as make matrix unpacks it. Tests start that one
// instead of the installed one.
const EnvRoot = "IDEMKEEPER_TEST_ROOT"

// findProgram returns the path of the program with the first of these names that there is: below the directory that
// EnvRoot names, in the PATH, or in a directory of Debian that may not be in the PATH.
func findProgram(names ...string) (string, error) {
	beside := []string{"/usr/sbin", "/usr/lib/postgresql/*/bin"} // of PostgreSQL, the last version counts
	if root := os.Getenv(EnvRoot); root != "" {
		for _, place := range append(beside, "/usr/bin") {
			for _, name := range names {
				if found, _ := filepath.Glob(filepath.Join(root, place, name)); len(found) > 0 { // the pattern is valid
					return found[len(found)-1], nil
				}
			}
		}
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
		for _, place := range beside {
			if found, _ := filepath.Glob(filepath.Join(place, name)); len(found) > 0 {
				return found[len(found)-1], nil
			}
		}
	}
	return "", fmt.Errorf("testserver: %s is not installed: %s", names[0], installHint)
}

// below returns the directory of EnvRoot if a program is from there, otherwise "".
func below(program string) string {
	if root := os.Getenv(EnvRoot); root != "" && strings.HasPrefix(program, filepath.Clean(root)+"/") {
		return root
	}
	return ""
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
