package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// killAtRandom lets clients pay, each key once and never again, and kills instances
// one after the other. The first kill hits a running payment, the others come at
// random moments. It returns the last instance, which is up, the payments, and the
// time of the last kill.
func killAtRandom(t *testing.T, s *kit.System, opts ...kit.LaunchOption) (last *kit.Instance, keys []kit.RunningPayment, killed time.Time) {
	t.Helper()
	opts = append(opts, kit.WithLatency(400*time.Millisecond))
	slow := append(slices.Clone(opts), kit.WithLatency(kit.VictimLatency))
	up := []*kit.Instance{s.Start("0", slow...), s.Start("1", opts...), s.Start("2", opts...)}
	const kills, perKill = 6, 8
	for k := range kills {
		for i := range perKill {
			via := kit.Transports[i%len(kit.Transports)]
			in := up[rand.IntN(len(up))]
			if k+i == 0 {
				in = up[0]
			}
			key := fmt.Sprintf("swept-%d-%d", k, i)
			keys = append(keys, kit.RunningPayment{Via: via, Key: key, Done: in.Client(via).StartPay(key, kit.Amount, key)})
		}
		n := 0
		if k == 0 {
			up[0].WaitLog(t, "at=before-ledger", kit.LogOp(keys[0].Key))
		} else {
			time.Sleep(rand.N(500 * time.Millisecond)) // the random moment
			n = rand.IntN(len(up))
		}
		up[n].Kill(t)
		killed = time.Now()
		if k < kills-2 {
			up[n] = s.Start(fmt.Sprint(3+k), opts...)
		} else {
			up = append(up[:n], up[n+1:]...)
		}
	}
	return up[0], keys, killed
}

// Instances are killed again and again, and no client comes back: the one that
// is left settles everything by itself. Every key is paid once or not at all,
// and says so; whoever retries then gets one payment.
func TestSweeperSettlesWhatTheDeadLeft(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in, keys, killed := killAtRandom(t, s)
	kit.Eventually(t, "end of the open records", func() error {
		if open := s.OpenRecords(t); len(open) > 0 {
			return fmt.Errorf("%d are open: %v", len(open), open)
		}
		return nil
	})
	t.Logf("no record was open %v after the last kill, with a session time-out of %v", time.Since(killed).Round(100*time.Millisecond), kit.SessionTimeout)
	states := map[string]int{}
	for _, r := range keys {
		<-r.Done
		c := in.Client(r.Via)
		state, err := c.KeyState(r.Key)
		states[state]++
		list, perr := c.ListPayments(r.Key)
		want := map[string]int{"completed": 1}[state]
		if err != nil || perr != nil || len(list) != want {
			t.Errorf("%s is %q (%v) with payments %v (%v), want %d", r.Key, state, err, list, perr, want)
		}
		switch state {
		case "completed", "released", "none":
		default:
			t.Errorf("%s is %q", r.Key, state)
		}
		kit.WantPaidOnce(t, "retry of "+r.Key, c, r.Key)
	}
	t.Logf("states: %v", states)
}

// With nobody who can tell, what the dead left shows to the operator, waits in
// the queue once, and is settled from the shell; retries get that answer.
func TestUnknownOutcomesAreSettledFromTheShell(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in, keys, _ := killAtRandom(t, s, kit.WithFlags("--resolver", "none"))
	kit.Eventually(t, "end of the pending records", func() error {
		if open := s.OpenRecords(t, "--state", "pending"); len(open) > 0 {
			return fmt.Errorf("%d are pending: %v", len(open), open)
		}
		return nil
	})
	unknown := map[string]bool{}
	for _, r := range s.OpenRecords(t, "--state", "unknown") {
		unknown[r.KeyID] = true
	}
	if len(unknown) == 0 {
		t.Fatal("nothing was left unknown: the test shows nothing")
	}
	kit.Eventually(t, "cases in the inbox", func() error {
		if out, _ := s.OutputOf("queue", "len", "/idem/inbox"); strings.TrimSpace(out) != fmt.Sprint(len(unknown)) {
			return fmt.Errorf("%q, want %d", out, len(unknown))
		}
		return nil
	})
	for range unknown {
		out, code := s.OutputOf("queue", "poll", "/idem/inbox")
		found := false
		for id := range unknown {
			found = found || strings.Contains(out, id)
		}
		if code != 0 || !found {
			t.Errorf("idemctl queue poll = %d %q, want the case of an unknown record", code, out)
		}
	}
	for _, r := range keys {
		<-r.Done
		c := in.Client(r.Via)
		if !unknown[kit.KeyID(r.Key).String()] {
			continue
		}
		kit.WantRefusal(t, "retry of an unknown key", c.Pay(r.Key, kit.Amount, r.Key), "outcome-unknown")
		list, err := c.ListPayments(r.Key)
		if err != nil {
			t.Fatal(err)
		}
		resolve := []string{"record", "resolve", "--scope", "merchant_demo", r.Key, "--reason", "seen in the ledger"}
		if len(list) == 0 {
			resolve = append(resolve, "--not-applied")
		} else {
			resolve = append(resolve, "--applied", kit.AnswerFor(t, r.Via, list[0]))
		}
		if out, code := s.OutputOf(resolve...); code != 0 {
			t.Fatalf("idemctl %q = %d %q", resolve, code, out)
		}
		a := c.PayWithRetries(r.Key, kit.Amount, r.Key)
		if len(list) == 0 {
			kit.WantPayment(t, "retry", a, kit.WantOnePayment(t, c, r.Key))
		} else {
			kit.WantReplay(t, "retry", a, kit.WantOnePayment(t, c, r.Key))
		}
	}
	if open := s.OpenRecords(t); len(open) != 0 {
		t.Errorf("open at the end: %v", open)
	}
}

// The leader of the sweep is cut off from ZooKeeper while it goes on reaching
// Redis; another one is elected. No attempt is decided twice.
func TestTwoSweepersInAPartitionDecideOnce(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	zk := s.ZooKeeperProxy()
	first := s.Start("the first leader", kit.ThroughZooKeeper(zk))
	kit.Eventually(t, "the first leader's election", func() error { return leads(first) })
	second := s.Start("the second", kit.WithLatency(kit.VictimLatency))
	victim := s.Start("the victim", kit.WithLatency(kit.VictimLatency))
	all := victim.StartPaymentsUpTo(t, "partition", "at=after-ledger")
	zk.BlackHole(testserver.Both)
	victim.Kill(t)
	kit.Eventually(t, "the second leader's election", func() error { return leads(second) })
	for _, r := range all {
		<-r.Done
		kit.Eventually(t, "decision", func() error {
			if state, err := second.Client(r.Via).KeyState(r.Key); err != nil || state != "completed" {
				return fmt.Errorf("state %q: %w", state, errors.Join(kit.ErrNotYet, err))
			}
			return nil
		})
	}
	zk.Restore()
	waitReady(t, first, 200)
	for _, r := range all {
		n := first.Stderr.Count("event=resolved", kit.LogOp(r.Key)) + second.Stderr.Count("event=resolved", kit.LogOp(r.Key))
		if n != 1 {
			t.Errorf("%s was decided %d times, want once", r.Key, n)
		}
		c := second.Client(r.Via)
		kit.WantReplay(t, "retry", c.PayWithRetries(r.Key, kit.Amount, r.Key), kit.WantOnePayment(t, c, r.Key))
	}
}

// leads is nil where this instance sweeps.
func leads(in *kit.Instance) error {
	a := in.HTTPClient().Request(context.Background(), "GET", "/metrics", "", nil)
	if strings.Contains(a.Body, "\nidemkeeper_sweeper_leads 1\n") {
		return nil
	}
	return kit.ErrNotYet
}
