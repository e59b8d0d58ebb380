package session

import (
	"testing"
	"time"
)

// A write that was queued when its connection broke goes out over the next one. If it gets
// no answer there, that connection is dropped as well, and not before its time.
func TestUnansweredWriteIsGuardedOverALaterConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.s
	_, patience := s.patience(time.Now())
	answered := s.guard() // of a write that the test never sends
	defer answered()
	time.Sleep(patience / 2)
	first, _ := s.connection()
	r.proxy.Cut()
	second := first
	until(t, "another connection", func() bool {
		gen, err := s.confirmation()
		second = gen
		return err == nil && gen > first
	})
	began := time.Now()
	until(t, "the end of the second connection", func() bool {
		gen, err := s.connection()
		return err != nil || gen > second
	})
	if lasted := time.Since(began); lasted < patience*3/4 {
		t.Errorf("the second connection was dropped after %v, want about %v", lasted, patience)
	}
}
