package sqllock

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _ driver.Assured = (*Locker)(nil)

// Assurance implements [driver.Assured]. The package's documentation has what a fail-over and a step of the clock do.
func (l *Locker) Assurance() guarantee.Part {
	return guarantee.Part{Name: "lock in " + string(l.keeper.names.kind.Name), Keeps: guarantee.Repeat | guarantee.Outage | guarantee.Crash | guarantee.Pause,
		Supplies: map[guarantee.Hazards]string{guarantee.All: "a lock in SQL may have two holders then: lock in ZooKeeper (idemzk.New), or join the record to the transaction (sqlstore.Join, pgxstore.Join)"}}
}
