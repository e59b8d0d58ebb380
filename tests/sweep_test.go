package tests

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// openRecords lists the open records as an operator sees them.
func (s *system) openRecords(t *testing.T, args ...string) []recordLine {
	t.Helper()
	out, code := s.outputOf(append([]string{"--json", "record", "list"}, args...)...)
	if code != 0 {
		t.Fatalf("idemctl record list = %d %q", code, out)
	}
	return recordLines(t, out)
}

// killAtRandom lets clients pay, each key once and never again, and kills instances
// one after the other. The first kill hits a running payment, the others come at
// random moments. It returns the last instance, which is up, the payments, and the
// time of the last kill.
func killAtRandom(t *testing.T, s *system, opts ...launchOption) (last *instance, keys []runningPayment, killed time.Time) {
	t.Helper()
	opts = append(opts, withLatency(400*time.Millisecond))
	slow := append(slices.Clone(opts), withLatency(victimLatency))
	up := []*instance{s.start("0", slow...), s.start("1", opts...), s.start("2", opts...)}
	const kills, perKill = 6, 8
	for k := range kills {
		for i := range perKill {
			via := transports[i%len(transports)]
			in := up[rand.IntN(len(up))]
			if k+i == 0 {
				in = up[0]
			}
			key := fmt.Sprintf("swept-%d-%d", k, i)
			keys = append(keys, runningPayment{via: via, key: key, done: in.client(via).startPay(key, amount, key)})
		}
		n := 0
		if k == 0 {
			up[0].waitLog(t, "at=before-ledger", logOp(keys[0].key))
		} else {
			time.Sleep(rand.N(500 * time.Millisecond)) // the random moment
			n = rand.IntN(len(up))
		}
		up[n].kill(t)
		killed = time.Now()
		if k < kills-2 {
			up[n] = s.start(fmt.Sprint(3+k), opts...)
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
	s := newSystem(t)
	in, keys, killed := killAtRandom(t, s)
	eventually(t, "end of the open records", func() error {
		if open := s.openRecords(t); len(open) > 0 {
			return fmt.Errorf("%d are open: %v", len(open), open)
		}
		return nil
	})
	t.Logf("no record was open %v after the last kill, with a session time-out of %v", time.Since(killed).Round(100*time.Millisecond), sessionTimeout)
	states := map[string]int{}
	for _, r := range keys {
		<-r.done
		c := in.client(r.via)
		state, err := c.keyState(r.key)
		states[state]++
		list, perr := c.listPayments(r.key)
		want := map[string]int{"completed": 1}[state]
		if err != nil || perr != nil || len(list) != want {
			t.Errorf("%s is %q (%v) with payments %v (%v), want %d", r.key, state, err, list, perr, want)
		}
		switch state {
		case "completed", "released", "none":
		default:
			t.Errorf("%s is %q", r.key, state)
		}
		wantPaidOnce(t, "retry of "+r.key, c, r.key)
	}
	t.Logf("states: %v", states)
}

// With nobody who can tell, what the dead left shows to the operator, waits in
// the queue once, and is settled from the shell; retries get that answer.
func TestUnknownOutcomesAreSettledFromTheShell(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in, keys, _ := killAtRandom(t, s, withFlags("--resolver", "none"))
	eventually(t, "end of the pending records", func() error {
		if open := s.openRecords(t, "--state", "pending"); len(open) > 0 {
			return fmt.Errorf("%d are pending: %v", len(open), open)
		}
		return nil
	})
	unknown := map[string]bool{}
	for _, r := range s.openRecords(t, "--state", "unknown") {
		unknown[r.KeyID] = true
	}
	if len(unknown) == 0 {
		t.Fatal("nothing was left unknown: the test shows nothing")
	}
	eventually(t, "cases in the inbox", func() error {
		if out, _ := s.outputOf("queue", "len", "/idem/inbox"); strings.TrimSpace(out) != fmt.Sprint(len(unknown)) {
			return fmt.Errorf("%q, want %d", out, len(unknown))
		}
		return nil
	})
	for range unknown {
		out, code := s.outputOf("queue", "poll", "/idem/inbox")
		found := false
		for id := range unknown {
			found = found || strings.Contains(out, id)
		}
		if code != 0 || !found {
			t.Errorf("idemctl queue poll = %d %q, want the case of an unknown record", code, out)
		}
	}
	for _, r := range keys {
		<-r.done
		c := in.client(r.via)
		if !unknown[keyID(r.key).String()] {
			continue
		}
		wantRefusal(t, "retry of an unknown key", c.pay(r.key, amount, r.key), "outcome-unknown")
		list, err := c.listPayments(r.key)
		if err != nil {
			t.Fatal(err)
		}
		resolve := []string{"record", "resolve", "--scope", "merchant_demo", r.key, "--reason", "seen in the ledger"}
		if len(list) == 0 {
			resolve = append(resolve, "--not-applied")
		} else {
			resolve = append(resolve, "--applied", answerFor(t, r.via, list[0]))
		}
		if out, code := s.outputOf(resolve...); code != 0 {
			t.Fatalf("idemctl %q = %d %q", resolve, code, out)
		}
		a := c.payWithRetries(r.key, amount, r.key)
		if len(list) == 0 {
			wantPayment(t, "retry", a, wantOnePayment(t, c, r.key))
		} else {
			wantReplay(t, "retry", a, wantOnePayment(t, c, r.key))
		}
	}
	if open := s.openRecords(t); len(open) != 0 {
		t.Errorf("open at the end: %v", open)
	}
}

// The leader of the sweep is cut off from ZooKeeper while it goes on reaching
// Redis; another one is elected. No attempt is decided twice.
func TestTwoSweepersInAPartitionDecideOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	zk := s.zooKeeperProxy()
	first := s.start("the first leader", throughZooKeeper(zk))
	eventually(t, "the first leader's election", func() error { return first.leads() })
	second := s.start("the second", withLatency(victimLatency))
	victim := s.start("the victim", withLatency(victimLatency))
	all := victim.startPaymentsUpTo(t, "partition", "at=after-ledger")
	zk.BlackHole(testserver.Both)
	victim.kill(t)
	eventually(t, "the second leader's election", func() error { return second.leads() })
	for _, r := range all {
		<-r.done
		eventually(t, "decision", func() error {
			if state, err := second.client(r.via).keyState(r.key); err != nil || state != "completed" {
				return fmt.Errorf("state %q: %w", state, errors.Join(errNotYet, err))
			}
			return nil
		})
	}
	zk.Restore()
	first.waitReady(t, 200)
	for _, r := range all {
		n := first.stderr.count("event=resolved", logOp(r.key)) + second.stderr.count("event=resolved", logOp(r.key))
		if n != 1 {
			t.Errorf("%s was decided %d times, want once", r.key, n)
		}
		c := second.client(r.via)
		wantReplay(t, "retry", c.payWithRetries(r.key, amount, r.key), wantOnePayment(t, c, r.key))
	}
}

// leads is nil where this instance sweeps.
func (in *instance) leads() error {
	a := in.httpClient().request(context.Background(), "GET", "/metrics", "", nil)
	if strings.Contains(a.body, "\nidemkeeper_sweeper_leads 1\n") {
		return nil
	}
	return errNotYet
}
