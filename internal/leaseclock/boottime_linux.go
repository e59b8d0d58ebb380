package leaseclock

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// sinceBoot is CLOCK_BOOTTIME in ns. Linux has had it since 2.6.39. A system that
// refuses it leaves nothing to trust a lease by: an older reading would keep leases
// alive, and another clock has another beginning.
func sinceBoot() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("leaseclock: clock_gettime(CLOCK_BOOTTIME): %v", err))
	}
	return ts.Nano()
}
