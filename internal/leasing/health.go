package leasing

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// ProbePause is the time between a failure and the next call that may look again.
const ProbePause = 100 * time.Millisecond

// Health remembers which parts of a service do not answer. Calls to them fail at once,
// and one call per pause looks again. It is safe for concurrent use.
type Health struct {
	answered func(error) bool // reports whether an error is the answer of a server

	mu    sync.Mutex
	until []time.Time // end of the pause, or zero if the part answers
}

// NewHealth returns the health of a service with so many parts. answered reports whether an error is an
// answer of the server.
func NewHealth(parts int, answered func(error) bool) *Health {
	return &Health{answered: answered, until: make([]time.Time, parts)}
}

// Admit reports whether a call may ask.
func (h *Health) Admit(part int) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	until := &h.until[part%len(h.until)]
	if time.Now().Before(*until) {
		return false
	}
	if !until.IsZero() {
		*until = time.Now().Add(ProbePause) // the others wait for this call
	}
	return true
}

// Note records the result of a request. A request that its caller gave up early says
// nothing about the service. ctx is the caller's.
func (h *Health) Note(ctx context.Context, part int, sent time.Time, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	until := &h.until[part%len(h.until)]
	switch {
	case err == nil, h.answered(err):
		*until = time.Time{}
	case errors.Is(err, context.Canceled), endedEarly(ctx, sent, err):
	default:
		*until = time.Now().Add(ProbePause)
	}
}

// endedEarly reports whether a request failed because its caller gave it less time than
// ProbePause. The client library gives the deadline of ctx to the connection. The read then
// fails with an error of its own, often just before ctx ends.
func endedEarly(ctx context.Context, sent time.Time, err error) bool {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	deadline, _ := ctx.Deadline()
	return expired(ctx) && deadline.Sub(sent) < ProbePause
}

// expired reports whether the deadline of ctx is over.
func expired(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && !time.Now().Before(deadline)
}
