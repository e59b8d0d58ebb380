//go:build unix && !linux

package recipe

import (
	"errors"
	"os/exec"
	"syscall"
)

// groupOfItsOwn makes a command the leader of a process group. If this process is
// killed, the command goes on.
func groupOfItsOwn(cmd *exec.Cmd) (restore func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return func() {}
}

// groupLives reports whether a process of the group is left.
func groupLives(group int) bool { return !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) }
