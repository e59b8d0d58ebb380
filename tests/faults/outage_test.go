package faults

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// atOnce is the longest time of an answer while a server is known to be down.
const atOnce = time.Second

// waitReady waits until /readyz has this status.
func waitReady(t testing.TB, in *kit.Instance, status int) {
	t.Helper()
	kit.Eventually(t, fmt.Sprintf("readiness %d of %s", status, in.Name), func() error {
		if a := in.HTTPClient().Readiness(); a.Status != status {
			return fmt.Errorf("%w: %v", kit.ErrNotYet, a)
		}
		return nil
	})
}

// wantRefusalAtOnce fails the test unless the answer is a refusal with this code that came at once.
func wantRefusalAtOnce(t testing.TB, what string, send func() kit.Answer, code string) {
	t.Helper()
	wantRefusalWithin(t, atOnce, what, send, code)
}

// wantRefusalWithin wants a refusal with this code within a time. A starved machine may take longer, so the best of
// three counts.
func wantRefusalWithin(t testing.TB, limit time.Duration, what string, send func() kit.Answer, code string) {
	t.Helper()
	var a kit.Answer
	for range 3 {
		a = send()
		kit.WantRefusal(t, what, a, code)
		if a.Took <= limit {
			return
		}
	}
	t.Errorf("%s = %v, want it within %v", what, a, limit)
}

func TestZooKeeperDownRefusesFreshKeysAndReplays(t *testing.T) {
	t.Parallel()
	for _, d := range kit.Outages {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSystem(t)
			p := s.ZooKeeperProxy()
			in := s.Start("one", kit.ThroughZooKeeper(p))
			before := kit.PayBefore(t, in)
			waitReady(t, in, 200)

			d.Begin(p)
			for _, r := range in.StartPayments("fresh") { // nobody knows of the outage yet
				a := <-r.Done
				kit.WantRefusal(t, "first fresh key over "+r.Via.String(), a, "unavailable")
				if a.Took > 10*atOnce { // there is one try, and the machine may be starved
					t.Errorf("first fresh key = %v, want it within the lock time-out of 2 s", a)
				}
			}
			waitReady(t, in, 503)
			kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
				c, fresh, old := in.Client(via), kit.KeyFor(via, "fresh"), kit.KeyFor(via, "before")
				for range 3 {
					wantRefusalAtOnce(t, "fresh key", func() kit.Answer { return c.Pay(fresh, kit.Amount, fresh) }, "unavailable")
					kit.WantReplay(t, "repeat", c.Pay(old, kit.Amount, old), before[via])
				}
				kit.WantNoPayment(t, c, fresh)
			})

			d.End(p)
			waitReady(t, in, 200)
			payFresh(t, in)
		})
	}
}

// payFresh pays over each transport what the outage has kept from being paid.
func payFresh(t *testing.T, in *kit.Instance) {
	t.Helper()
	for _, via := range kit.Transports {
		key := kit.KeyFor(via, "fresh")
		kit.WantPaidOnce(t, "fresh key afterwards over "+via.String(), in.Client(via), key)
	}
}

// The server itself is killed and comes back, with requests under way.
func TestZooKeeperKilledAndRestarted(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	s := kit.NewSystemOn(t, z.Hosts())
	in := s.Start("one", kit.WithLatency(kit.VictimLatency))
	all := in.StartPaymentsUpTo(t, "during", "at=before-ledger")
	z.Kill()
	waitReady(t, in, 503)
	for i, r := range all { // paid if the lease was still trusted at the write, else refused
		all[i].Done = kit.Answered(<-r.Done)
	}
	for _, via := range kit.Transports {
		wantRefusalAtOnce(t, "fresh key", func() kit.Answer { return in.Client(via).Pay(kit.KeyFor(via, "fresh"), kit.Amount, "fresh") }, "unavailable")
	}
	z.Restart()
	waitReady(t, in, 200)
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		c := in.Client(r.Via)
		want := kit.WantPaidOnce(t, "retry", c, r.Key).Payment
		if a := <-r.Done; a.IsPayment() && a.Payment != want {
			t.Errorf("first answer = %v, want %v", a, want)
		}
	})
}

func TestRedisDownRefusesAtOnce(t *testing.T) {
	t.Parallel()
	for _, d := range kit.Outages {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSystem(t)
			p := s.RedisProxy()
			in := s.Start("one", kit.ThroughRedis(p))
			before := kit.PayBefore(t, in)
			waitReady(t, in, 200)

			d.Begin(p)
			waitReady(t, in, 503)
			limit := atOnce
			if d.Name == "does not answer" {
				limit = 3 * atOnce // nothing tells it from a slow one but the time-out, 1 s
			}
			kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
				for _, name := range []string{"fresh", "before"} {
					key := kit.KeyFor(via, name)
					wantRefusalWithin(t, limit, key, func() kit.Answer { return in.Client(via).Pay(key, kit.Amount, key) }, "unavailable")
				}
				kit.WantNoPayment(t, in.Client(via), kit.KeyFor(via, "fresh"))
			})

			d.End(p)
			waitReady(t, in, 200)
			for _, via := range kit.Transports {
				key := kit.KeyFor(via, "before")
				kit.WantPayment(t, "repeat afterwards over "+via.String(), in.Client(via).PayWithRetries(key, kit.Amount, key), before[via])
			}
			payFresh(t, in)
		})
	}
}

// Redis goes away exactly when the outcomes are to be stored: the clients have
// their answers, the locks are kept, and repeats wait until it is stored.
func TestRedisDownAtTheSaveKeepsTheLock(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	p := s.RedisProxy()
	in, other := s.Start("one", kit.ThroughRedis(p), kit.WithLatency(kit.VictimLatency)), s.Start("other")
	all := in.StartPaymentsUpTo(t, "unsaved", "at=after-ledger")
	kit.Outages[0].Begin(p)
	want := map[kit.Transport]kit.Payment{}
	for _, r := range all {
		want[r.Via] = kit.WantOnePayment(t, other.Client(r.Via), r.Key)
		kit.WantPayment(t, "answer over "+r.Via.String(), <-r.Done, want[r.Via])
	}

	// Longer than the session: the holder lives, and so do its locks.
	for end := time.Now().Add(kit.SessionTimeout + 2*time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		for _, r := range all {
			kit.WantInProgress(t, "repeat elsewhere", other.Client(r.Via), r.Key)
			kit.WantInProgress(t, "repeat here", in.Client(r.Via), r.Key)
		}
	}
	kit.Outages[0].End(p)
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		for _, at := range []*kit.Instance{other, in} {
			kit.WantReplay(t, "repeat afterwards at "+at.Name, at.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key), want[r.Via])
		}
		kit.WantOnePayment(t, other.Client(r.Via), r.Key)
	})
	kit.Eventually(t, "release of the locks", func() error {
		if locks := s.Locks(s.ZooKeeper()); len(locks) > 0 {
			return errors.Join(kit.ErrNotYet, fmt.Errorf("locks %q", locks))
		}
		return nil
	})
}
