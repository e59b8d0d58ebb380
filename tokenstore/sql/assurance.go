package sqlstore

import (
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

var _, _ driver.Assured = (*Store)(nil), (*Joined)(nil)

// Assurance implements [driver.Assured]. What is committed may be lost in a fail-over to an asynchronous standby, and with a backup.
func (s *Store) Assurance() guarantee.Part {
	const markers = "lock in ZooKeeper with durable markers (zookeeper.WithDurableMarkers), or join the record to the transaction (sqlstore.Join, pgxstore.Join)"
	p := guarantee.Part{Name: "records in " + string(s.dialect.Name), Keeps: guarantee.Repeat | guarantee.Outage | guarantee.Crash | guarantee.Pause | guarantee.ClockStep,
		Supplies: map[guarantee.Hazards]string{guarantee.ServerLoss | guarantee.FailOver | guarantee.Loss: markers}}
	if s.dialect.File { // no other clock could disagree with that of the database
		p.Conditions = append(p.Conditions, "the clock of the machine does not jump ahead by the time that keys are remembered")
	}
	return p
}

// Assurance implements [driver.Assured]. Record and business live and die together, so only what a handler does with its transaction is left
// as a condition. [Strict] and pgx refuse it at the client.
func (j *Joined) Assurance() guarantee.Part {
	p := j.Store.Assurance()
	if j.strict {
		return p
	}
	g, postgres := j.guard.(*postgresGuard)
	switch {
	case !postgres:
		p.Conditions = append(p.Conditions, "a handler answers with an error after a failed statement, which a pool from sqlstore.OpenStrict makes sure of")
	case g.pooled.Load():
		p.Conditions = append(p.Conditions, "no handler ends its transaction by a statement, because behind a pooler nothing holds the key then: a pool from pgxstore.Open makes sure of that")
	}
	return p
}
