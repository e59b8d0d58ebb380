package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Machine gives a server a clock and a disk of its own, so that a test can step the one
// ([ZooKeeper.StepClock]) and fill the other ([ZooKeeper.FillDisk]). The clock is Debian's
// faketime. The disk is a small tmpfs, which only root may mount (see [CanFillDisks]).
//
// A Machine goes to any number of servers of one test. Each of them gets its own clock and
// disk. The disks are unmounted in the test's clean-up.
type Machine struct {
	tb testing.TB
}

// NewMachine returns a Machine for servers that tb starts.
func NewMachine(tb testing.TB) *Machine { return &Machine{tb: tb} }

// On a machine, Redis and ZooKeeper have a disk of diskSize, and PostgreSQL of databaseDisk.
const (
	diskSize     = 96 << 20
	databaseDisk = 384 << 20
)

// faketimePattern is where Debian keeps the library.
const faketimePattern = "/usr/lib/*/faketime/libfaketimeMT.so.1"

// hardware is the clock and the disk of one server. The zero value is the machine that the
// test runs on.
type hardware struct {
	clock string // the file that faketime reads, or ""
	disk  string // where the small disk is mounted, or ""
}

// equip mounts a disk at dir/disk and returns the environment of a server with a clock of
// its own. Without the right to mount the directory is an ordinary one.
func (m *Machine) equip(server, dir string, size int64) (h hardware, env []string, err error) {
	if below(server) != "" {
		m.tb.Skip(NotRunHere + "faketime is that of this machine, and works with no server of another release")
	}
	found, err := filepath.Glob(faketimePattern)
	if err != nil || len(found) == 0 {
		return h, nil, fmt.Errorf("testserver: faketime is not installed: %s", installHint)
	}
	h.clock = filepath.Join(dir, "clock")
	if err := h.step(0); err != nil {
		return h, nil, err
	}
	disk := filepath.Join(dir, "disk")
	if err := os.Mkdir(disk, 0o777); err != nil {
		return h, nil, err
	}
	if CanFillDisks() {
		if err := mountSmallDisk(disk, size); err != nil {
			return h, nil, fmt.Errorf("testserver: mount %s: %w", disk, err)
		}
		m.tb.Cleanup(func() {
			if err := unmount(disk); err != nil {
				m.tb.Errorf("testserver: unmount %s: %v", disk, err)
			}
		})
		h.disk = disk
	}
	return h, append(os.Environ(),
		// The second library keeps jemalloc out of Redis. It asks for the time while it
		// starts, which faketime takes for an endless recursion.
		"LD_PRELOAD="+found[0]+" libc.so.6",
		"FAKETIME_TIMESTAMP_FILE="+h.clock, "FAKETIME_CACHE_DURATION=1",
		// Only the wall clock is stepped, as on a real machine. With the fix, waits in a
		// JVM would end at once.
		"FAKETIME_DONT_FAKE_MONOTONIC=1", "FAKETIME_FORCE_MONOTONIC_FIX=0"), nil
}

// forgetClock removes what faketime leaves of a process that was killed.
func forgetClock(pid int) {
	for _, name := range []string{"faketime_shm_", "sem.faketime_sem_"} {
		_ = os.Remove("/dev/shm/" + name + strconv.Itoa(pid)) // most processes have none
	}
}

// step writes the offset of the clock in one piece.
func (h hardware) step(offset time.Duration) error {
	next := h.clock + ".next"
	if err := os.WriteFile(next, fmt.Appendf(nil, "%+d\n", int64(offset/time.Second)), 0o644); err != nil {
		return err
	}
	return os.Rename(next, h.clock)
}

// fill writes zeros until there is no space.
func (h hardware) fill() error {
	f, err := os.Create(filepath.Join(h.disk, "filler"))
	if err != nil {
		return err
	}
	defer f.Close()
	for zeros := make([]byte, 1<<20); len(zeros) > 0; {
		if _, err = f.Write(zeros); errors.Is(err, syscall.ENOSPC) {
			zeros = zeros[:len(zeros)/2] // down to the last byte
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// CanFillDisks reports whether servers on a [Machine] get a disk of their own, because this
// user may mount file systems.
var CanFillDisks = sync.OnceValue(func() bool {
	dir, err := os.MkdirTemp("", "idemkeeper-disk-")
	if err != nil {
		return false
	}
	defer os.Remove(dir)
	unmountLeft()
	return mountSmallDisk(dir, 1<<20) == nil && unmount(dir) == nil
})

// StepClock sets the wall clock of a server on a [Machine] to this offset from the true
// time, in whole seconds. The server notices within about a second. Its monotonic clock
// goes on.
func (i *instance) StepClock(offset time.Duration) {
	i.tb.Helper()
	if i.hardware.clock == "" {
		i.tb.Errorf("testserver: StepClock: %s has no machine of its own", i.prog.name)
		return
	}
	i.check(i.hardware.step(offset))
}

// FillDisk leaves no space on the disk of a server on a [Machine]. Many servers end then.
func (i *instance) FillDisk() {
	i.tb.Helper()
	if i.hardware.disk == "" {
		i.tb.Errorf("testserver: FillDisk: %s has no disk of its own", i.prog.name)
		return
	}
	i.check(i.hardware.fill())
}

// RecoverDisk does what an operator does after FillDisk: it makes room and starts the server again.
func (i *instance) RecoverDisk() {
	i.tb.Helper()
	i.makeRoom()
	i.Restart()
}

// makeRoom gives back what FillDisk took.
func (i *instance) makeRoom() {
	i.tb.Helper()
	i.check(os.Remove(filepath.Join(i.hardware.disk, "filler")))
}
