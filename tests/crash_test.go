package tests

import (
	"testing"
)

// amount that most tests pay.
const amount = 1250

// failover is a victim and another instance that gets the retries. The other
// one has paid before, so that Redis knows the scripts.
func failover(t *testing.T, opts ...launchOption) (*system, *victim, *instance) {
	t.Helper()
	t.Parallel()
	s := newSystem(t)
	other := s.start("the other", opts...)
	if a := other.demo().pay("warm-up", 1, "warm-up"); a.status != 201 {
		t.Fatalf("first payment = %v, want 201", a)
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
			const key = "killed"
			p.reach(t, v, key)
			v.kill(t)

			retry := other.demo().payUntil(patience, key, amount, key)
			want := paidOnce(t, other.demo(), key)
			original(t, "retry", retry, want)
			if p.paid && !retry.replayed() {
				t.Errorf("retry = %v, want it marked as replayed", retry)
			}

			v.deliver()
			again := other.demo().payUntil(patience, key, amount, key)
			original(t, "second retry", again, want)
			if !again.replayed() || again.body != retry.body {
				t.Errorf("second retry = %v, want %q replayed", again, retry.body)
			}
			paidOnce(t, other.demo(), key)
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
			const key = "unknown"
			p.reach(t, v, key)
			v.kill(t)

			refused(t, "retry", other.demo().payUntil(patience, key, amount, key), 409, "outcome-unknown")
			v.deliver()
			a := other.demo().pay(key, amount, key)
			if p.name == "the outcome is on its way" && a.status == 201 {
				// The dead holder's own report came late, and an unknown outcome
				// is still open to it.
				original(t, "retry after the report", a, paidOnce(t, other.demo(), key))
				return
			}
			refused(t, "second retry", a, 409, "outcome-unknown")
			if state, err := other.demo().state(key); err != nil || state != "unknown" {
				t.Errorf("state = %q, %v, want unknown", state, err)
			}
			if p.paid {
				paidOnce(t, other.demo(), key)
			} else {
				paidNever(t, other.demo(), key)
			}
		})
	}
}

// An instance that is started again takes up where its predecessor was killed.
func TestKilledAndRestartedInstanceResumes(t *testing.T) {
	s, v, _ := failover(t)
	const key = "restarted"
	reachLog("at=after-ledger")(t, v, key)
	v.kill(t)
	reborn := s.start("the reborn")
	retry := reborn.demo().payUntil(patience, key, amount, key)
	original(t, "retry", retry, paidOnce(t, reborn.demo(), key))
}
