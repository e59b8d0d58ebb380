package tests

import "testing"

// amount that most tests pay.
const amount = 1250

// failover is a victim and another instance that gets the retries. The other
// one has paid before, so that Redis knows the scripts.
func failover(t *testing.T, opts ...launchOption) (*system, *victim, *instance) {
	t.Helper()
	t.Parallel()
	s := newSystem(t)
	other := s.start("the other", opts...)
	if a := other.demo().payUntil(patience, "warm-up", 1, "warm-up"); !a.paid() {
		t.Fatalf("first payment = %v, want it made", a)
	}
	return s, s.startVictim(opts...), other
}

// A holder that is killed at any point is succeeded once its session is over,
// and whoever retries gets the one payment. Messages of the dead that arrive
// late change nothing.
func TestKilledHolderIsSucceeded(t *testing.T) {
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) {
			_, v, other := failover(t)
			all := p.reach(t, v, "killed")
			v.kill(t)

			first := map[transport]answer{}
			overEachOf(t, all, func(t *testing.T, r running) {
				retry := other.over(r.via).payUntil(patience, r.key, amount, r.key)
				original(t, "retry", retry, paidOnce(t, other.over(r.via), r.key))
				if p.paid && !retry.replayed {
					t.Errorf("retry = %v, want it marked as replayed", retry)
				}
				first[r.via] = retry
			})

			v.deliver()
			for _, r := range all {
				c, want := other.over(r.via), first[r.via]
				again := c.payUntil(patience, r.key, amount, r.key)
				replayed(t, "second retry over "+r.via.String(), again, want.payment)
				if again.wire != want.wire {
					t.Errorf("second retry = %v, want what the first got, %v", again, want)
				}
				paidOnce(t, c, r.key)
			}
		})
	}
}

// Where nobody can tell what a killed holder has done, every retry is told so,
// and nothing is paid again.
func TestKilledHolderWithoutResolverIsUnknown(t *testing.T) {
	for _, p := range points {
		if !p.begun || p.stored {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			_, v, other := failover(t, flags("--resolver", "none"))
			all := p.reach(t, v, "unknown")
			v.kill(t)
			for _, r := range all {
				retry := other.over(r.via).payUntil(patience, r.key, amount, r.key)
				refused(t, "retry over "+r.via.String(), retry, "outcome-unknown")
			}
			v.deliver()
			overEachOf(t, all, func(t *testing.T, r running) {
				c := other.over(r.via)
				a := c.pay(r.key, amount, r.key)
				if p.name == "the outcome is on its way" && a.paid() {
					// The dead holder's own report came late, and an unknown outcome
					// is still open to it.
					original(t, "retry after the report", a, paidOnce(t, c, r.key))
					return
				}
				refused(t, "second retry", a, "outcome-unknown")
				if state, err := c.state(r.key); err != nil || state != "unknown" {
					t.Errorf("state = %q, %v, want unknown", state, err)
				}
				if p.paid {
					paidOnce(t, c, r.key)
				} else {
					paidNever(t, c, r.key)
				}
			})
		})
	}
}

// An instance that is started again takes up where its predecessor was killed.
func TestKilledAndRestartedInstanceResumes(t *testing.T) {
	s, v, _ := failover(t)
	all := v.reachOverEach(t, "restarted", "at=after-ledger")
	v.kill(t)
	reborn := s.start("the reborn")
	overEachOf(t, all, func(t *testing.T, r running) {
		c := reborn.over(r.via)
		retry := c.payUntil(patience, r.key, amount, r.key)
		original(t, "retry", retry, paidOnce(t, c, r.key))
	})
}
