// Package shard says into how many parts a map that many goroutines use is split.
package shard

import (
	"math/bits"
	"runtime"
)

// most is how many parts a byte of a key can tell apart.
const most = 256

// Count returns a power of two from 16 to 256: eight parts or more for each
// processor, so that goroutines with different keys seldom meet at a mutex, and what
// one call does for all of its part does not take long; and not many more, so that
// what is at the head of each part stays in the processor's caches.
func Count() int {
	return max(16, min(1<<bits.Len(uint(8*runtime.GOMAXPROCS(0)-1)), most))
}
