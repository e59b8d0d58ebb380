package testserver

import (
	"errors"
	"fmt"
	"time"
)

// StartTimeout bounds how long a server may take until it answers. It is
// generous because several JVMs may share two cores.
const StartTimeout = 3 * time.Minute

const (
	// exitTimeout bounds the wait for a process that was signalled.
	exitTimeout = 30 * time.Second
	// pollInterval is the pause between two looks at a condition.
	pollInterval = 20 * time.Millisecond
	// askTimeout bounds one question to a server, dialling included.
	askTimeout = 2 * time.Second
)

// errGone is returned by poll when the process under observation has ended.
var errGone = errors.New("process ended")

// poll calls cond until it returns nil, gone is closed or the time is over.
// A nil gone never ends the wait. The error wraps cond's last one.
func poll(limit time.Duration, gone <-chan struct{}, cond func() error) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := cond()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-gone:
			return fmt.Errorf("%w: %w", errGone, err)
		case <-deadline.C:
			return fmt.Errorf("not within %v: %w", limit, err)
		}
	}
}
