//go:build unix

package crashtest

import (
	"os"
	"syscall"
	"time"
)

// canStop is changed by a test.
var canStop = true

// stopSelf stops this process. It returns when another process has continued it. A signal to all threads may take a
// moment, so the loop holds the caller back until the clock shows that the process was away.
func stopSelf() {
	stopped := time.Now()
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		panic(err)
	}
	for time.Since(stopped) < leastStop { // only spinning resumes at once
	}
}

func continueProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
