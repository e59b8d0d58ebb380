package load

import (
	"fmt"
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
