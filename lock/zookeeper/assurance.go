package zookeeper

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _ driver.Assured = (*Locker)(nil)

// Assurance implements [driver.Assured]. A quorum agrees on each lock, and an ensemble that comes back with older data is noticed. Durable
// markers remember a key that the store has lost.
func (l *Locker) Assurance() guarantee.Part {
	p := guarantee.Part{Name: "lock in ZooKeeper", Keeps: guarantee.All}
	if l.marking {
		p.Name, p.Remembers = "lock in ZooKeeper with durable markers", guarantee.ClockStep|guarantee.ServerLoss|guarantee.FailOver|guarantee.Loss
		p.Conditions = []string{"durable markers stay for as long as requests are repeated"}
	}
	return p
}
