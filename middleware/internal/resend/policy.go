package resend

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"
)

// Policy bounds the attempts of a call. Adapters document its fields.
type Policy struct {
	Attempts int           // the first one included
	First    time.Duration // back-off before the second
	Most     time.Duration // it doubles up to this
	Elapsed  time.Duration // no attempt starts later, from the start of the call
}

// The default: long enough for a server to restart and for a lock to come free
// whose holder has died, with the session time-out of 10 s that is usual. It is
// the time that bounds a call: attempts that are refused at once, while nobody
// listens, must not use up those that are needed when the server is back.
const (
	DefaultAttempts = 100
	DefaultFirst    = 100 * time.Millisecond
	DefaultMost     = 5 * time.Second
	DefaultElapsed  = time.Minute
)

// Default returns the default policy.
func Default() Policy {
	return Policy{Attempts: DefaultAttempts, First: DefaultFirst, Most: DefaultMost, Elapsed: DefaultElapsed}
}

// Validate says what is wrong with the policy.
func (p Policy) Validate() error {
	switch {
	case p.Attempts < 1:
		return errors.New("a call needs one attempt at least")
	case p.First <= 0 || p.Most < p.First:
		return errors.New("the back-off has to be positive, and cannot shrink")
	case p.Elapsed <= 0:
		return errors.New("the time for retries has to be positive")
	}
	return nil
}

// Call is one logical call on its way. It is used by one goroutine at a time.
type Call struct {
	policy  Policy
	started time.Time
	made    int // attempts
}

// Start starts a call, and its first attempt.
func (p Policy) Start() Call { return Call{policy: p, started: time.Now(), made: 1} }

// Next says how long to wait before another attempt. asked is what the server
// asked for, or 0. It is false where there is to be none: attempts or time are
// used up, or ctx would end first.
func (c *Call) Next(ctx context.Context, asked time.Duration) (time.Duration, bool) {
	p := &c.policy
	if c.made >= p.Attempts || asked > p.Elapsed || ctx.Err() != nil {
		return 0, false
	}
	pause := max(asked, 0) + rand.N(p.backoff(c.made)) //nolint:gosec // it spreads retries, and is no secret
	at := time.Now().Add(pause)
	if at.Sub(c.started) > p.Elapsed {
		return 0, false
	}
	if deadline, ok := ctx.Deadline(); ok && !at.Before(deadline) {
		return 0, false
	}
	c.made++
	return pause, true
}

// backoff is the longest pause after so many attempts, without what the server
// asks for.
func (p *Policy) backoff(made int) time.Duration {
	d := p.First
	for i := 1; i < made && d < p.Most; i++ {
		d *= 2
	}
	return min(d, p.Most)
}

// Sleep returns ctx.Err() where ctx ends first.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
