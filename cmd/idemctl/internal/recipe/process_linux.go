package recipe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"unsafe"
)

// groupOfItsOwn makes a command the leader of a process group. When this process is
// killed, the kernel kills the leader, but not its children and not a command that
// gains privileges by exec. If this process has its terminal in the foreground, the
// command gets the terminal until restore, for input and for Ctrl-C.
func groupOfItsOwn(cmd *exec.Cmd) (restore func()) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	self, err := readStat("self")
	if err != nil || self.foreground != self.group {
		return func() {}
	}
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return func() {}
	}
	cmd.SysProcAttr.Foreground, cmd.SysProcAttr.Ctty = true, int(terminal.Fd())
	return func() {
		// The kernel stops a background process that touches its terminal,
		// unless it ignores that.
		signal.Ignore(syscall.SIGTTOU)
		defer signal.Reset(syscall.SIGTTOU)
		group := int32(self.group)
		_, _, _ = syscall.Syscall(syscall.SYS_IOCTL, terminal.Fd(), syscall.TIOCSPGRP, uintptr(unsafe.Pointer(&group))) //nolint:gosec // the kernel reads the number during the call
		_ = terminal.Close()
	}
}

// groupLives reports whether a process of the group is left. Zombies do not count.
func groupLives(group int) bool {
	if errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) {
		return false
	}
	pids, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(pids) == 0 {
		return true
	}
	for _, pid := range pids {
		s, err := readStat(filepath.Base(pid))
		if err == nil && s.group == group && s.state != 'Z' && s.state != 'X' {
			return true
		}
	}
	return false
}

// stat is a part of /proc/PID/stat, see proc(5).
type stat struct {
	state      byte
	group      int
	foreground int // group in the foreground of its terminal, -1 without a terminal
}

func readStat(pid string) (stat, error) {
	data, err := os.ReadFile("/proc/" + pid + "/stat") //nolint:gosec // pid is a name found in /proc, or "self"
	if err != nil {
		return stat{}, err
	}
	f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:]) // the fields after the name are state, parent, group, session, terminal, foreground
	if len(f) < 6 {
		return stat{}, fmt.Errorf("/proc/%s/stat has too few fields", pid)
	}
	s := stat{state: f[0][0]}
	s.group, err = strconv.Atoi(string(f[2]))
	if err != nil {
		return stat{}, err
	}
	s.foreground, err = strconv.Atoi(string(f[5]))
	return s, err
}
