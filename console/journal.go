package console

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// mostEvents is how many events a console remembers.
const mostEvents = 20_000

// journal remembers the latest events of this instance. They tell what a record does not keep,
// such as the error of a resolver.
type journal struct {
	mu    sync.Mutex
	most  int
	ring  []noted
	next  int // the oldest entry once the ring is full
	total int
}

// noted is an event and when this process saw it.
type noted struct {
	At time.Time
	telemetry.Event
}

// Observe is an [telemetry.Observer]. The story of a key then also shows what this instance saw of it,
// for example what the resolver said. The console remembers the latest 20,000 events.
func (c *Console) Observe(_ context.Context, ev telemetry.Event) {
	if ev.KeyID == (driver.KeyID{}) {
		return
	}
	c.events.add(noted{time.Now(), ev})
}

func (j *journal) add(n noted) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.total++
	if len(j.ring) < j.most {
		j.ring = append(j.ring, n)
		return
	}
	j.ring[j.next] = n
	j.next = (j.next + 1) % j.most
}

// of returns the events of a key, oldest first.
func (j *journal) of(id driver.KeyID) (list []noted) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range j.ring {
		if n := &j.ring[(j.next+i)%len(j.ring)]; n.KeyID == id {
			list = append(list, *n)
		}
	}
	return list
}

// attemptOf tells the attempts of all keys apart.
type attemptOf struct {
	id     driver.KeyID
	number uint32
}

// resolverSaid are the latest words of a resolver that could not tell, by attempt. An
// EventResolved may be the decision of an operator, and so it is not among them.
func (j *journal) resolverSaid() map[attemptOf]string {
	j.mu.Lock()
	defer j.mu.Unlock()
	said := make(map[attemptOf]string)
	for i := range j.ring {
		if n := &j.ring[(j.next+i)%len(j.ring)]; n.Type == telemetry.EventUnresolved {
			said[attemptOf{n.KeyID, n.Attempt.Number}] = wordsOf(&n.Event)
		}
	}
	return said
}

// wordsOf are the words of a resolver that could not tell.
func wordsOf(ev *telemetry.Event) string {
	if ev.Err != nil {
		return "it failed: " + ev.Err.Error()
	}
	return "it cannot tell"
}
