package main

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

// groupOfItsOwn makes a command the leader of a process group, which the kernel
// kills with this process (the leader, not what it has started; nor one that
// gains privileges by exec). Where this process has a terminal in the
// foreground, the command gets it until restore: it can read from it, and
// Ctrl-C is its own.
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

// groupLives says whether a process of the group is left. Those that have ended
// and nobody waits for do not count.
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

// stat is what is of interest here in /proc/PID/stat, see proc(5).
type stat struct {
	state      byte
	group      int
	foreground int // group in the foreground of its terminal; -1: it has none
}

func readStat(pid string) (stat, error) {
	data, err := os.ReadFile("/proc/" + pid + "/stat") //nolint:gosec // pid is a name found in /proc, or "self"
	if err != nil {
		return stat{}, err
	}
	f := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:]) // behind the name: state, parent, group, session, terminal, foreground
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
