package idem

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

const (
	// intakeParts is in how many parts the engine divides the keys, to notice which part of a store
	// takes no writes. tokenstore/redis divides them in the same way, so a primary that refuses closes
	// no part of another one. Another store is asked once for each part.
	intakeParts = 64
	// intakePause is the time between a refused Begin and the next one that may try.
	intakePause = 100 * time.Millisecond
)

// intake remembers which parts of the store take no writes. A request for a new attempt there is refused
// before it takes a lock. One request per pause tries again.
type intake struct {
	closed [intakeParts]atomic.Pointer[refusedBegin] // nil while the part takes writes
}

// refusedBegin is the answer to the last try.
type refusedBegin struct {
	err  error
	next time.Time // when another Begin may try
}

// refuses returns the error of the last try if a Begin of the key would be refused now.
func (i *intake) refuses(id driver.KeyID) error {
	part := &i.closed[int(id[0])%intakeParts]
	last := part.Load()
	if last == nil {
		return nil
	}
	if now := time.Now(); !now.Before(last.next) && part.CompareAndSwap(last, &refusedBegin{last.err, now.Add(intakePause)}) {
		return nil // the others wait for this one
	}
	return fmt.Errorf("idem: the store refused a moment ago: %w", last.err)
}

// note records the answer to a Begin.
func (i *intake) note(id driver.KeyID, err error) {
	part := &i.closed[int(id[0])%intakeParts]
	switch {
	case errors.Is(err, driver.ErrNoWrites):
		part.Store(&refusedBegin{err, time.Now().Add(intakePause)})
	case err == nil && part.Load() != nil:
		part.Store(nil)
	}
}
