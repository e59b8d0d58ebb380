package testserver

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

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
