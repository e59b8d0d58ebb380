package sweeper

import (
	"fmt"
	"runtime/debug"
)

// The store, the inbox, the chores and the observers are code of others. Their panic must not end the
// process from a goroutine of the sweeper, and must not end a pass before it comes to the next record.

// guarded calls fn, and returns its panic as an error.
func guarded(call string, fn func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("sweeper: %s panicked: %v\n%s", call, p, debug.Stack())
		}
	}()
	return fn()
}
