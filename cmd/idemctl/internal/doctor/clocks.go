package doctor

import (
	"slices"
	"time"
)

// clockReading is how far a server's clock is ahead of this machine's.
type clockReading struct {
	whose string
	ahead time.Duration
	give  time.Duration // the error, in either direction
}

// readClock compares a server's time, from an answer to a request of time sent.
func readClock(whose string, told, sent time.Time) clockReading {
	took := time.Since(sent)
	return clockReading{whose, told.Sub(sent.Add(took / 2)), took / 2}
}

// checkClocks compares the clocks with each other and with this machine's.
func (c *recordCheck) checkClocks() {
	clocks := c.p.clocks
	if len(clocks) == 0 {
		return
	}
	clocks = append(clocks, clockReading{whose: "this machine"})
	first := slices.MinFunc(clocks, func(a, b clockReading) int { return int(a.ahead - b.ahead) })
	last := slices.MaxFunc(clocks, func(a, b clockReading) int { return int(a.ahead - b.ahead) })
	apart, give := last.ahead-first.ahead, first.give+last.give
	c.gradef(apart <= maxSkew+give, "clock-skew", "%d clocks are within %v, give or take %v, from %s to %s",
		len(clocks), apart.Round(time.Millisecond), give.Round(time.Millisecond), first.whose, last.whose)
}
