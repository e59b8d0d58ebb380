package memorylock

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _ driver.Assured = (*Locker)(nil)

// Assurance implements [driver.Assured]. The lock ends with its process, and so does everything that it guards.
func (l *Locker) Assurance() guarantee.Part {
	return guarantee.Part{Name: "lock in this process", Keeps: guarantee.All}
}
