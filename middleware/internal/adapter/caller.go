package adapter

import (
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
)

// Caller tells whether certain functions are in the stack of this goroutine. It is safe for
// concurrent use.
type Caller struct {
	prefix string
	known  atomic.Uintptr // where such a function was found in an earlier stack
}

// CallerOf returns a Caller for the functions whose full name begins with prefix.
func CallerOf(prefix string) *Caller { return &Caller{prefix: prefix} }

// Calls reports whether one of the functions has called, directly or not, the function that calls
// Calls. It is false in a goroutine that was started below them.
func (x *Caller) Calls() bool {
	var pcs [32]uintptr
	for skip := 2; ; skip += len(pcs) {
		n := runtime.Callers(skip, pcs[:])
		known := x.known.Load()
		if known != 0 && slices.Contains(pcs[:n], known) {
			return true
		}
		for _, pc := range pcs[:n] {
			if f := runtime.FuncForPC(pc - 1); f != nil && strings.HasPrefix(f.Name(), x.prefix) {
				x.known.Store(pc)
				return true
			}
		}
		if n < len(pcs) {
			return false
		}
	}
}
