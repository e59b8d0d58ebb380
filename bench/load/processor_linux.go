package load

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processorTime is what the processes have used since they started, in user and system
// mode, in all their threads. The kernel keeps a clock of it for each process, and it
// counts nanoseconds. The file /proc/PID/stat has the same figure in steps of 10 ms, too
// coarse for one connection.
func processorTime(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		// The number of the clock is as in clock_getcpuclockid of the C library.
		clock := int32(^pid)<<3 | 2
		var t unix.Timespec
		if err := unix.ClockGettime(clock, &t); err != nil {
			return 0, fmt.Errorf("processor time of process %d: %w", pid, err)
		}
		sum += time.Duration(t.Nano())
	}
	return sum, nil
}

// tick is the unit of /proc/stat. It is the same on all machines that Go runs on.
const tick = 10 * time.Millisecond

// busyTime is what all processes of the machine have used since it started, with the time
// that its host gave to other machines.
func busyTime() (time.Duration, error) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, err
	}
	line, _, _ := strings.Cut(string(data), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	var sum time.Duration
	for i, field := range fields[1:9] {
		if i == 3 || i == 4 { // idle, and idle while waiting for a disk
			continue
		}
		ticks, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/stat begins with %q: %w", line, err)
		}
		sum += time.Duration(ticks) * tick
	}
	return sum, nil
}
