//go:build unix && !linux

package main

import (
	"errors"
	"os/exec"
	"syscall"
)

// groupOfItsOwn makes a command the leader of a process group. It outlives this
// process should that be killed.
func groupOfItsOwn(cmd *exec.Cmd) (restore func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return func() {}
}

// groupLives says whether a process of the group is left.
func groupLives(group int) bool { return !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }
