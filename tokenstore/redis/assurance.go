package redisstore

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _ driver.Assured = (*Store)(nil)

// Assurance implements [driver.Assured]. A jump of the server's clock is refused as store-lost if it can be noticed, and so is the loss of all
// records with a witness, unless the store accepts both by itself. The latest writes may be lost in a fail-over, also with replicas that have acknowledged them.
func (s *Store) Assurance() guarantee.Part {
	p := guarantee.Part{Name: "records in Redis", Keeps: guarantee.Repeat | guarantee.Outage | guarantee.Crash | guarantee.Pause | guarantee.ClockStep,
		Supplies: map[guarantee.Hazards]string{
			guarantee.ServerLoss: "let replicas acknowledge each payment (redisstore.WithReplicas), or turn durable markers on (idemzk.WithDurableMarkers)",
			guarantee.FailOver:   "turn durable markers on (idemzk.WithDurableMarkers)",
			guarantee.Loss:       "give the store a witness, as idemzk.New does (redisstore.WithWitness), or turn durable markers on (idemzk.WithDurableMarkers)",
		}}
	if s.loss.Witness != nil {
		p.Name, p.Keeps = "records in Redis with a witness", p.Keeps|guarantee.Loss
	}
	if s.replicas != nil {
		p.Keeps |= guarantee.ServerLoss
		p.Conditions = append(p.Conditions, fmt.Sprintf("only one of the %d replicas that acknowledge takes over from a lost Redis", s.replicas.want))
	}
	if s.loss.Accepted != nil {
		p.Name, p.Keeps = p.Name+" that accepts their loss", p.Keeps&^(guarantee.Loss|guarantee.ClockStep)
		const markers = "turn durable markers on (idemzk.WithDurableMarkers), or leave redisstore.WithLossAcceptance out"
		p.Supplies[guarantee.Loss], p.Supplies[guarantee.ClockStep] = markers, markers
	}
	return p
}
