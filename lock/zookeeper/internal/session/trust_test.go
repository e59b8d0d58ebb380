package session

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// Once trust has run out only an acknowledged write brings it back. A connect that was
// accepted moves the deadline as well, and no timer would watch it.
func TestNothingIsHeldAfterTrustRanOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Freeze(testserver.Both)
	defer r.proxy.Restore()
	st := r.s.status
	st.mu.Lock()
	st.lapsed = true
	st.mu.Unlock()
	held := r.s.Hold(func(error) {}, func() {})
	st.mu.Lock()
	st.lapsed = false
	st.mu.Unlock()
	if held != nil {
		t.Error("Hold() after trust ran out, and no timer ends it")
	}
}

// A holder is told before trust ends, and again when the lock has to go.
func TestHoldIsToldOfTheEndOfTrust(t *testing.T) {
	t.Parallel()
	r := newStillRig(t)
	lost, overdue := make(chan error, 2), make(chan struct{})
	ended := r.s.Hold(func(err error) { t.Errorf("told of %v after End()", err) }, func() {})
	if r.s.Hold(func(err error) { lost <- err }, func() { close(overdue) }) == nil {
		t.Fatal("Hold() = nil, want a hold")
	}
	ended.End()
	if n := r.s.Held(); n != 1 {
		t.Errorf("Held() = %d, want 1", n)
	}
	r.proxy.Freeze(testserver.Both)
	r.clock.Advance(r.s.Timeout())
	if r.s.Trusted() {
		t.Error("Trusted() = true a session after the last write")
	}
	if err := <-lost; !errors.Is(err, idem.ErrLeaseLost) {
		t.Errorf("told of %v, want %v", err, idem.ErrLeaseLost)
	}
	if r.s.Hold(func(error) {}, func() {}) != nil {
		t.Error("Hold() without trust, want nil")
	}
	r.proxy.Restore()
	await(t, "the lock has to go", overdue)
	select {
	case err := <-lost:
		t.Errorf("told of %v a second time", err)
	default:
	}
}

// A session that is over grants no lease, although its last write is young.
func TestNoLeaseAfterTheEndOfTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if h := r.s.Hold(func(error) {}, func() {}); h == nil {
		t.Fatal("Hold() = nil before the end, want a hold")
	}
	r.s.GiveUp()
	if h := r.s.Hold(func(error) {}, func() {}); h != nil || r.s.Trusted() || r.s.Held() != 0 {
		t.Errorf("Hold() after the end = %v, Trusted() = %v, %d holds, want none", h, r.s.Trusted(), r.s.Held())
	}
}
