package sealed

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _ driver.Assured = (*Store)(nil)

// Assurance implements [driver.Assured]. It is that of the wrapped store.
func (s *Store) Assurance() guarantee.Part {
	if a, ok := s.wrapped.(driver.Assured); ok {
		return a.Assurance()
	}
	return guarantee.Part{Name: "sealed records", Keeps: guarantee.Repeat | guarantee.Outage}
}
