//go:build !linux

package leaseclock

import "time"

var start = time.Now()

// sinceBoot is Go's monotonic clock in ns since the start of the process. It is never
// 0.
func sinceBoot() int64 { return int64(time.Since(start)) + 1 }
