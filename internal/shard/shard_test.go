package shard

import (
	"runtime"
	"testing"
)

func TestCountFollowsTheProcessors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for processors, want := range map[int]int{1: 16, 2: 16, 3: 32, 16: 128, 32: 256, 100: 256} {
		runtime.GOMAXPROCS(processors)
		if got := Count(); got != want {
			t.Errorf("with %d processors Count() = %d, want %d", processors, got, want)
		}
	}
}
