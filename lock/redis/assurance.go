package redislock

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _ driver.Assured = (*Locker)(nil)

// Assurance implements [driver.Assured]. See "Without ZooKeeper: the Redis lock" in docs/design.md.
func (l *Locker) Assurance() guarantee.Part {
	return guarantee.Part{Name: "lock in Redis", Keeps: guarantee.Repeat | guarantee.Outage | guarantee.Crash | guarantee.Pause,
		Supplies: map[guarantee.Hazards]string{guarantee.All: "a lock in Redis may have two holders then: lock in ZooKeeper (idemzk.New)"}}
}
