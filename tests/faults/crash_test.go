package faults

import (
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// A holder that is killed at any point is succeeded once its session is over,
// and whoever retries gets the one payment. Messages of the dead that arrive
// late change nothing.
func TestKilledHolderIsSucceeded(t *testing.T) {
	t.Parallel()
	for _, p := range kit.Points {
		t.Run(p.Name, func(t *testing.T) {
			_, v, other := kit.SystemWithVictim(t)
			all := p.PayUpTo(t, v, "killed")
			v.Kill(t)

			first := map[kit.Transport]kit.Answer{}
			kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
				retry := kit.WantPaidOnce(t, "retry", other.Client(r.Via), r.Key)
				if p.Paid && !retry.Replayed {
					t.Errorf("retry = %v, want it marked as replayed", retry)
				}
				first[r.Via] = retry
			})

			v.ReleaseHeld()
			for _, r := range all {
				c, want := other.Client(r.Via), first[r.Via]
				again := c.PayWithRetries(r.Key, kit.Amount, r.Key)
				kit.WantReplay(t, "second retry over "+r.Via.String(), again, want.Payment)
				if again.Wire != want.Wire {
					t.Errorf("second retry = %v, want what the first got, %v", again, want)
				}
				kit.WantOnePayment(t, c, r.Key)
			}
		})
	}
}

// Where nobody can tell what a killed holder has done, every retry is told so,
// and nothing is paid again.
func TestKilledHolderWithoutResolverIsUnknown(t *testing.T) {
	t.Parallel()
	for _, p := range kit.Points {
		if !p.Begun || p.Stored {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			_, v, other := kit.SystemWithVictim(t, kit.WithFlags("--resolver", "none"))
			all := p.PayUpTo(t, v, "unknown")
			v.Kill(t)
			for _, r := range all {
				retry := other.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key)
				kit.WantRefusal(t, "retry over "+r.Via.String(), retry, "outcome-unknown")
			}
			v.ReleaseHeld()
			kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
				c := other.Client(r.Via)
				if p.Name == "the outcome is on its way" {
					// The dead holder's own report comes late, and an unknown outcome is
					// still open to it.
					kit.Eventually(t, "the report", func() error { return wantState(c, r.Key, "completed") })
					kit.WantReplay(t, "retry after the report", c.Pay(r.Key, kit.Amount, r.Key), kit.WantOnePayment(t, c, r.Key))
					return
				}
				kit.WantRefusal(t, "second retry", c.Pay(r.Key, kit.Amount, r.Key), "outcome-unknown")
				if err := wantState(c, r.Key, "unknown"); err != nil {
					t.Error(err)
				}
				if p.Paid {
					kit.WantOnePayment(t, c, r.Key)
				} else {
					kit.WantNoPayment(t, c, r.Key)
				}
			})
		})
	}
}

// wantState is nil while the store has a key in a state.
func wantState(c kit.Client, key, want string) error {
	state, err := c.KeyState(key)
	if err == nil && state != want {
		err = fmt.Errorf("state = %q, want %s", state, want)
	}
	return err
}
