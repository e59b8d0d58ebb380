package sqlstore

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _ driver.Assured = (*Store)(nil)

// Assurance implements [driver.Assured]. What is committed may be lost in a fail-over to an asynchronous standby, and with a backup.
func (s *Store) Assurance() guarantee.Part {
	const markers = "turn durable markers on (zookeeper.WithDurableMarkers), or join the record to the transaction (idem.NewJoined)"
	return guarantee.Part{Name: "records in " + string(s.dialect.Name), Keeps: guarantee.Repeat | guarantee.Outage | guarantee.Crash | guarantee.Pause | guarantee.ClockStep,
		Supplies: map[guarantee.Hazards]string{guarantee.FailOver | guarantee.Loss: markers}}
}
