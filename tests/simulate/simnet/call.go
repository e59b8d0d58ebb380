package simnet

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// ErrNoReply says that the answer to a call did not come. The call may have taken effect.
var ErrNoReply = errors.New("simnet: no reply")

// ErrNotSent says that a call was lost before it arrived.
var ErrNotSent = errors.New("simnet: the call was lost")

// Fates says how often a call meets a fault: one in so many, and 0 for never.
type Fates struct {
	Lost, ReplyLost int           // the caller hears of it at once, or at the end of its context
	Late            int           // the call arrives later by up to Latest, and the caller may have gone
	Twice           int           // the call arrives again, later by up to Latest
	Latest          time.Duration // bounds the delay of late calls
}

// Caller makes calls from one host to another, as a client library over a pool of
// connections does. Calls may overtake each other. It is safe for concurrent use.
type Caller struct {
	net      *Net
	src, dst string

	mu    sync.Mutex
	rnd   *rand.Rand
	fates Fates
	wg    sync.WaitGroup
}

// NewCaller returns a caller whose calls meet these fates.
func (n *Net) NewCaller(src, dst string, f Fates) *Caller {
	return &Caller{net: n, src: src, dst: dst, rnd: Random(n.seed, src+" calls "+dst), fates: f}
}

// Calm ends all fates but success for the calls from now on.
func (c *Caller) Calm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fates = Fates{}
}

// Wait waits for the calls that are still on their way.
func (c *Caller) Wait() { c.wg.Wait() }

// fate is what becomes of one call.
type fate struct {
	lost, replyLost, silent bool
	there, back, again      time.Duration // again is 0 for never
}

func (c *Caller) draw() fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	one := func(in int) bool { return in > 0 && c.rnd.IntN(in) == 0 }
	f := fate{
		there: c.net.delay(c.rnd), back: c.net.delay(c.rnd),
		lost: one(c.fates.Lost), replyLost: one(c.fates.ReplyLost), silent: c.rnd.IntN(2) == 0,
	}
	if one(c.fates.Late) {
		f.there += time.Duration(c.rnd.Int64N(int64(c.fates.Latest)))
	}
	if one(c.fates.Twice) {
		f.again = f.there + time.Duration(c.rnd.Int64N(int64(c.fates.Latest)))
	}
	return f
}

// Do has serve called at the other host. It returns nil when serve has returned and the
// answer has come, and an error if the answer does not come. Then serve may have been
// called, may be called later, or never. serve may be called twice, and the first call
// counts for the caller.
func (c *Caller) Do(ctx context.Context, serve func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	f := c.draw()
	answered := make(chan error, 1)
	if f.again > 0 {
		c.wg.Go(func() {
			if c.travel(c.src, c.dst, f.again) {
				serve()
			}
		})
	}
	c.wg.Go(func() {
		if !c.travel(c.src, c.dst, f.there) {
			return
		}
		err := ErrNotSent
		if !f.lost {
			serve()
			err = ErrNoReply
		}
		c.travel(c.dst, c.src, f.back)
		switch {
		case !f.lost && !f.replyLost:
			answered <- nil
		case !f.silent:
			answered <- err
		}
	})
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// travel waits for as long as a message takes. It is false if the sender has gone before
// the message left.
func (c *Caller) travel(src, dst string, d time.Duration) bool {
	for {
		wait := time.Until(c.net.Clear(time.Now(), src, dst))
		if c.net.isGone(src) {
			return false
		}
		if wait <= 0 {
			break
		}
		time.Sleep(wait)
	}
	time.Sleep(d)
	for {
		wait := time.Until(c.net.Clear(time.Now(), src, dst))
		if wait <= 0 {
			return true
		}
		time.Sleep(wait)
	}
}
