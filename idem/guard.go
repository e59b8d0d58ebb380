package idem

import (
	"fmt"
	"runtime/debug"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// A store and a lock are code of others, and so are the hooks of their clients. A panic there must not
// leave a lock behind for the life of the process, and must not end the process from a goroutine of
// ours. To the engine it is a call without an answer.

// recovered makes an error of a panic. Defer it around a call of a store, a lock or a transaction.
func recovered(call string, err *error) {
	if p := recover(); p != nil {
		*err = panicked(call, p)
	}
}

func panicked(call string, p any) error {
	return fmt.Errorf("idem: %w: %s panicked: %v\n%s", driver.ErrUnavailable, call, p, debug.Stack())
}

// guarded calls fn, and returns its panic as an error.
func guarded(fn func()) (err error) {
	defer recovered("a call in the background", &err)
	fn()
	return nil
}
