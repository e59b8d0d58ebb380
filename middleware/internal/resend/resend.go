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
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	random "math/rand/v2"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/uuid"
)

// Key returns the key of a new logical call. Inside of an execution it is the key that
// the execution sends to the system called name. Elsewhere, and if the execution is of a request without a key, it is a random one. request returns a
// hash of the call, and is called inside of an execution only. A second call with this name has
// to have the same hash. A nil request leaves that to [Claim]. After an error nothing may be sent.
func Key(ctx context.Context, name string, request func() ([sha256.Size]byte, error)) (string, error) {
	if _, inside := idem.FromContext(ctx); !inside { // also for a request without a key
		return uuid.New(), Gate(ctx)
	}
	if request == nil {
		key, err := idem.DownstreamKey(ctx, name)
		return key, notSent(err)
	}
	hash, err := request()
	if err != nil {
		return "", notSent(err)
	}
	key, err := idem.DownstreamKeyFor(ctx, name, hash)
	return key, notSent(err)
}

// Claim says which call the key of a name is for, if that was not known to [Key]. After an error
// nothing may be sent.
func Claim(ctx context.Context, name string, hash [sha256.Size]byte) error {
	_, err := idem.DownstreamKeyFor(ctx, name, hash)
	return notSent(err)
}

func notSent(err error) error {
	if err == nil || errors.Is(err, idem.ErrNoExecution) {
		return nil
	}
	return fmt.Errorf("idemkeeper: nothing was sent: %w", err)
}

// Incomparable returns the hash of a call that cannot be compared, so it differs from any other.
func Incomparable() (hash [sha256.Size]byte) {
	_, _ = rand.Read(hash[:]) // never fails (crypto/rand, since Go 1.24)
	return hash
}

// Gate notes in an execution that a call with a possible effect is about to be sent. [Key]
// notes it too. After idem.ErrExecutionEnded nothing may be sent.
func Gate(ctx context.Context) error {
	_, err := idem.DownstreamKey(ctx, "")
	return notSent(err)
}

// Policy bounds the attempts of a call. The options of the transports set its fields.
type Policy struct {
	First   time.Duration // back-off before the second
	Most    time.Duration // the back-off doubles up to this
	Elapsed time.Duration // no attempt starts later, from the start of the call; 0 is for one attempt
}

// Default returns the default policy. A minute is long enough for a server to restart,
// and for the lock of a holder that died to come free after the usual session time-out of
// 10 s.
func Default() Policy {
	return Policy{First: 100 * time.Millisecond, Most: 5 * time.Second, Elapsed: time.Minute}
}

// Validate says what is wrong with the policy.
func (p Policy) Validate() error {
	switch {
	case p.First <= 0 || p.Most < p.First:
		return errors.New("the back-off has to be positive, and cannot shrink")
	case p.Elapsed < 0:
		return errors.New("the time for retries is negative")
	}
	return nil
}

// Call is one logical call on its way. One goroutine at a time uses it.
type Call struct {
	policy  Policy
	started time.Time
	made    int  // attempts
	failed  bool // an answer was sent again that is worth one more try only
}

// Advice is what an answer says about sending its call again with the same key.
type Advice struct {
	Again bool          // it may help
	Once  bool          // only once: what another try tells is the last word
	Asked time.Duration // the pause from the server, or 0
}

// Start starts a call and its first attempt.
func (p Policy) Start() Call { return Call{policy: p, started: time.Now(), made: 1} }

// Next returns the pause before another attempt. It returns false if none may help, if
// the time is used up, or if ctx would end during the pause.
func (c *Call) Next(ctx context.Context, advice Advice) (time.Duration, bool) {
	p, asked := &c.policy, advice.Asked
	if !advice.Again || advice.Once && c.failed {
		return 0, false
	}
	c.failed = c.failed || advice.Once
	if p.Elapsed == 0 || asked > p.Elapsed || ctx.Err() != nil {
		return 0, false
	}
	pause := max(asked, 0) + random.N(p.backoff(c.made)) //nolint:gosec // it spreads retries, and is no secret
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
