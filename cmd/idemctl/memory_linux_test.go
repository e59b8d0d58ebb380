package main

import (
	"os"
	"syscall"
)

// maxMemory is the greatest memory that a process had, in KiB.
func maxMemory(p *os.ProcessState) int64 {
	if usage, ok := p.SysUsage().(*syscall.Rusage); ok {
		return usage.Maxrss
	}
	return 0
}
