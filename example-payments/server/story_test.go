package server

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// A stream may be further than a story that made room for others and began anew.
func TestStoryThatBeganAnew(t *testing.T) {
	timeline, id := NewTimeline(), idem.KeyID{1}
	if list, next, _ := timeline.after(id, 3); len(list) != 0 || next != 0 {
		t.Errorf("after(3) = %v, %d, want nothing and 0", list, next)
	}
}
