// Package resend chooses the key of a logical call, and when to send the call again, for the
// clients of all transports. The transports say what may be sent again, because
// they can read the answer.
//
// A call has one key for all of its attempts. Between attempts it waits for as long as
// the server asked, and for a random part of a growing back-off, so that callers who were
// turned away together do not come back together (M. Brooker, "Exponential Backoff And
// Jitter", 2015).
package resend

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

// Key returns the key of a new logical call. Inside of an execution it is the key that
// the execution sends to the system called name, elsewhere a random one. After
// idem.ErrExecutionEnded nothing may be sent.
func Key(ctx context.Context, name string) (string, error) {
	key, err := idem.DownstreamKey(ctx, name)
	switch {
	case errors.Is(err, idem.ErrNoExecution):
		return uuid.New(), nil
	case err != nil:
		return "", fmt.Errorf("idemkeeper: nothing was sent: %w", err)
	}
	return key, nil
}

// Gate notes in an execution that a call with a possible effect is about to be sent. [Key]
// notes it too. After idem.ErrExecutionEnded nothing may be sent.
func Gate(ctx context.Context) error {
	_, err := Key(ctx, "")
	return err
}

// Policy bounds the attempts of a call. The options of the transports set its fields.
type Policy struct {
	Attempts int           // the first one included
	First    time.Duration // back-off before the second
	Most     time.Duration // the back-off doubles up to this
	Elapsed  time.Duration // no attempt starts later, from the start of the call
}

// Default returns the default policy. A minute is long enough for a server to restart,
// and for the lock of a holder that died to come free after the usual session time-out of
// 10 s. The time bounds a call, so 100 attempts allow for a server that refuses
// connections at once while it restarts.
func Default() Policy {
	return Policy{Attempts: 100, First: 100 * time.Millisecond, Most: 5 * time.Second, Elapsed: time.Minute}
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

// Call is one logical call on its way. One goroutine at a time uses it.
type Call struct {
	policy  Policy
	started time.Time
	made    int // attempts
}

// Start starts a call and its first attempt.
func (p Policy) Start() Call { return Call{policy: p, started: time.Now(), made: 1} }

// Next returns the pause before another attempt. asked is the pause from the server, or
// 0. Next returns false if attempts or time are used up, or if ctx would end
// during the pause.
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

// backoff returns the longest pause after so many attempts.
func (p *Policy) backoff(made int) time.Duration {
	d := p.First
	for i := 1; i < made && d < p.Most; i++ {
		d *= 2
	}
	return min(d, p.Most)
}

// Wait pauses before another attempt. It returns an error if ctx ends first, or if nothing
// more may be sent.
func Wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return Gate(ctx)
	case <-ctx.Done():
		return ctx.Err()
	}
}
