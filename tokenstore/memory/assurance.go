package memorystore

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _ driver.Assured = (*Store)(nil)

// Assurance implements [driver.Assured].
func (s *Store) Assurance() guarantee.Part {
	return guarantee.Part{Name: "records in this process", Keeps: guarantee.Repeat | guarantee.Outage | guarantee.Pause | guarantee.ClockStep,
		Conditions: []string{"no other instance of the service runs"},
		Supplies:   map[guarantee.Hazards]string{guarantee.All: "the records end with the process: keep them in Redis or SQL (tokenstore/redis, tokenstore/sql)"}}
}
