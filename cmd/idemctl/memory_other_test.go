//go:build !linux

package main

import "os"

// maxMemory is not known elsewhere.
func maxMemory(*os.ProcessState) int64 { return 0 }
