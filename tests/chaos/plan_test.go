package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// fault is something that goes wrong. It strikes, lasts, and undoes itself. Its name counts
// it in the figures.
type fault interface {
	String() string
	hit(c *chaos, s strike)
}

// lane is a target of faults. They strike it one after the other, while those of the other
// lanes go on.
type lane struct {
	name   string
	pause  time.Duration // between two faults, at most
	faults []choice
}

// choice is a fault, and how long it lasts.
type choice struct {
	fault
	least, most time.Duration
}

func lasting(least, most time.Duration, f fault) choice { return choice{f, least, most} }

func (c *chaos) lane(name string, pause time.Duration, faults ...choice) {
	c.lanes = append(c.lanes, lane{name, pause, faults})
}

// strike is a fault at its time in the plan.
type strike struct {
	at    time.Duration // since the begin of the run
	lane  int
	fault fault
	lasts time.Duration
	dice  uint64 // for what else the fault has to choose
}

// plan draws all strikes from the seed, and shows them.
func (c *chaos) plan() (all []strike) {
	for i, l := range c.lanes {
		r := rand.New(rand.NewPCG(c.seed, uint64(i)))
		for at := time.Duration(0); ; {
			at += time.Duration(r.Int64N(int64(l.pause)))
			f := l.faults[r.IntN(len(l.faults))]
			s := strike{at, i, f.fault, f.least + time.Duration(r.Int64N(int64(f.most-f.least)+1)), r.Uint64()}
			if at > c.lasts {
				break
			}
			all = append(all, s)
			at += s.lasts
		}
	}
	slices.SortStableFunc(all, func(a, b strike) int { return int(a.at - b.at) })
	c.t.Logf("the plan of %s with seed %d:", c.config.name, c.seed)
	for _, s := range all {
		c.t.Logf("%7.2fs %-11s %v for %v", s.at.Seconds(), c.lanes[s.lane].name, s.fault, s.lasts.Round(time.Millisecond))
	}
	return all
}

// strikeAll follows the plan. A strike waits for the one before it in its lane, and is left
// out if that takes until after the end.
func (c *chaos) strikeAll(all []strike) {
	c.began = time.Now()
	var lanes sync.WaitGroup
	for i := range c.lanes {
		lanes.Go(func() {
			for _, s := range all {
				if s.lane != i {
					continue
				}
				c.wait(time.Until(c.began.Add(s.at)))
				if time.Since(c.began) > c.lasts {
					return
				}
				c.note(s, "begins")
				s.fault.hit(c, s)
				c.note(s, "is over")
			}
		})
	}
	lanes.Wait()
}

// wait lets time pass. The moments of a chaos run are random, and it waits for no condition.
func (c *chaos) wait(d time.Duration) { time.Sleep(d) }

// note keeps a line for the stories, and counts the strike when it begins.
func (c *chaos) note(s strike, what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.diary = append(c.diary, entry{time.Now(), fmt.Sprintf("%s: %v %s", c.lanes[s.lane].name, s.fault, what)})
	if what == "begins" {
		c.figures["fault-"+s.fault.String()]++
	}
}

// entry is a line of a story.
type entry struct {
	at   time.Time
	text string
}
