package testserver

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ChildAttr makes the kernel kill the child when the thread that started it
// ends (see process.run), and keeps a terminal's Ctrl-C away from it, so that
// clean-up order stays ours.
func ChildAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// claimPort reserves a port number across processes. An abstract Unix socket
// has the life time wanted: one owner, gone with its process, no file left.
func claimPort(port int) (io.Closer, error) {
	return net.Listen("unix", fmt.Sprintf("@idemkeeper/testserver/%d", port))
}

// smallDisk begins the name under which /proc/mounts lists a small disk. The ID of this
// process follows.
const smallDisk = "idemkeeper-disk-"

// mountSmallDisk mounts an empty file system of this many bytes.
func mountSmallDisk(dir string, size int64) error {
	return syscall.Mount(smallDisk+strconv.Itoa(os.Getpid()), dir, "tmpfs", 0, "mode=0777,size="+strconv.FormatInt(size, 10))
}

// unmountLeft unmounts the small disks of test binaries that were killed.
func unmountLeft() {
	mounts, _ := os.ReadFile("/proc/mounts")
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line) // name directory type …
		if owner, ok := strings.CutPrefix(f[0], smallDisk); ok {
			if pid, err := strconv.Atoi(owner); err == nil && gone(pid) {
				_ = unmount(f[1])
			}
		}
	}
}

// unmount takes the file system away also while a process has a file open.
func unmount(dir string) error { return syscall.Unmount(dir, syscall.MNT_DETACH) }

// childrenOf returns the child processes of a process.
func childrenOf(pid int) (children []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat") // the pattern is well-formed
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if err != nil {
			continue // it has just ended
		}
		var child, parent int
		var state string
		_, _ = fmt.Sscan(string(data), &child)
		if n, _ := fmt.Sscan(string(data[bytes.LastIndexByte(data, ')')+1:]), &state, &parent); n == 2 && parent == pid && state != "Z" {
			children = append(children, child)
		}
	}
	return children
}

// gone reports whether a process has ended.
func gone(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	rest := data[bytes.LastIndexByte(data, ')')+1:]
	return len(rest) > 1 && (rest[1] == 'Z' || rest[1] == 'X')
}

// AllStopped returns nil once every thread of the process is stopped. SIGSTOP
// reaches a JVM's threads one by one.
func AllStopped(pid int) error {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return err
	}
	if len(stats) == 0 {
		return fmt.Errorf("process %d has no threads", pid)
	}
	for _, name := range stats {
		data, err := os.ReadFile(name)
		if os.IsNotExist(err) {
			continue // the thread has just ended
		}
		if err != nil {
			return err
		}
		// "tid (comm) S …": comm may itself hold parentheses.
		rest := data[bytes.LastIndexByte(data, ')')+1:]
		if len(rest) < 2 || (rest[1] != 'T' && rest[1] != 'X' && rest[1] != 'Z') {
			return fmt.Errorf("a thread of process %d still runs", pid)
		}
	}
	return nil
}
