package tests

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// childAttr makes the kernel kill the child with the thread that started it,
// and keeps a terminal's Ctrl-C away from it.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// allStopped returns nil once every thread of the process stands still.
func allStopped(pid int) error {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // the thread has just ended
		}
		if err != nil {
			return err
		}
		rest := data[bytes.LastIndexByte(data, ')')+1:] // " T …", behind the name
		if len(rest) < 2 || !bytes.ContainsAny(rest[1:2], "TXZ") {
			return fmt.Errorf("a thread of process %d still runs", pid)
		}
	}
	return nil
}
