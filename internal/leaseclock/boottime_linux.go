package leaseclock

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// sinceBoot is CLOCK_BOOTTIME in ns. Linux has had it since 2.6.39. If the system
// refuses it, no other reading is safe. An older one would keep leases alive, and
// another clock has another origin.
func sinceBoot() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("leaseclock: clock_gettime(CLOCK_BOOTTIME): %v", err))
	}
	return ts.Nano()
}
