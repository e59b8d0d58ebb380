package tests

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// atOnce is the longest time of an answer while a server is known to be down.
const atOnce = time.Second

// waitReady waits until /readyz has this status.
func (in *instance) waitReady(t testing.TB, status int) {
	t.Helper()
	eventually(t, fmt.Sprintf("readiness %d of %s", status, in.name), func() error {
		if a := in.httpClient().readiness(); a.status != status {
			return fmt.Errorf("%w: %v", errNotYet, a)
		}
		return nil
	})
}

// wantRefusalAtOnce fails the test unless the answer is a refusal with this code that
// came at once. A starved machine may take longer, so the best of three counts.
func wantRefusalAtOnce(t testing.TB, what string, send func() answer, code string) {
	t.Helper()
	var a answer
	for range 3 {
		a = send()
		wantRefusal(t, what, a, code)
		if a.took <= atOnce {
			return
		}
	}
	t.Errorf("%s = %v, want it within %v", what, a, atOnce)
}

// outage is a way to take a server away from an instance, and to give it back.
type outage struct {
	name       string
	begin, end func(p *testserver.Proxy)
}

var outages = []outage{
	{"refuses connections",
		func(p *testserver.Proxy) { p.Refuse(true); p.Cut() },
		func(p *testserver.Proxy) { p.Refuse(false) }},
	{"does not answer",
		func(p *testserver.Proxy) { p.BlackHole(testserver.Both) },
		func(p *testserver.Proxy) { p.Restore() }},
}

func TestZooKeeperDownRefusesFreshKeysAndReplays(t *testing.T) {
	for _, d := range outages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := s.zooKeeperProxy()
			in := s.start("one", throughZooKeeper(p))
			before := payBefore(t, in)
			in.waitReady(t, 200)

			d.begin(p)
			for _, r := range in.startPayments("fresh") { // nobody knows of the outage yet
				a := <-r.done
				wantRefusal(t, "first fresh key over "+r.via.String(), a, "unavailable")
				if a.took > 3*atOnce {
					t.Errorf("first fresh key = %v, want it within the lock time-out of 2 s", a)
				}
			}
			in.waitReady(t, 503)
			forEachTransport(t, func(t *testing.T, via transport) {
				c, fresh, old := in.client(via), keyFor(via, "fresh"), keyFor(via, "before")
				for range 3 {
					wantRefusalAtOnce(t, "fresh key", func() answer { return c.pay(fresh, amount, fresh) }, "unavailable")
					wantReplay(t, "repeat", c.pay(old, amount, old), before[via])
				}
				wantNoPayment(t, c, fresh)
			})

			d.end(p)
			in.waitReady(t, 200)
			payFresh(t, in)
		})
	}
}

// payBefore pays over each transport what is asked for again during an outage.
func payBefore(t *testing.T, in *instance) map[transport]payment {
	t.Helper()
	paid := map[transport]payment{}
	for _, via := range transports {
		key := keyFor(via, "before")
		paid[via] = wantPaidOnce(t, "payment before the outage over "+via.String(), in.client(via), key).payment
	}
	return paid
}

// payFresh pays over each transport what the outage has kept from being paid.
func payFresh(t *testing.T, in *instance) {
	t.Helper()
	for _, via := range transports {
		key := keyFor(via, "fresh")
		wantPaidOnce(t, "fresh key afterwards over "+via.String(), in.client(via), key)
	}
}

// The server itself is killed and comes back, with requests under way.
func TestZooKeeperKilledAndRestarted(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	s := newSystemOn(t, z.Hosts())
	in := s.start("one", withLatency(victimLatency))
	all := in.startPaymentsUpTo(t, "during", "at=before-ledger")
	z.Kill()
	in.waitReady(t, 503)
	for i, r := range all { // paid if the lease was still trusted at the write, else refused
		all[i].done = answered(<-r.done)
	}
	for _, via := range transports {
		wantRefusalAtOnce(t, "fresh key", func() answer { return in.client(via).pay(keyFor(via, "fresh"), amount, "fresh") }, "unavailable")
	}
	z.Restart()
	in.waitReady(t, 200)
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := in.client(r.via)
		want := wantPaidOnce(t, "retry", c, r.key).payment
		if a := <-r.done; a.isPayment() && a.payment != want {
			t.Errorf("first answer = %v, want %v", a, want)
		}
	})
}

func TestRedisDownRefusesAtOnce(t *testing.T) {
	for _, d := range outages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := s.redisProxy()
			in := s.start("one", throughRedis(p))
			before := payBefore(t, in)
			in.waitReady(t, 200)

			d.begin(p)
			in.waitReady(t, 503)
			limit := atOnce
			if d.name == "does not answer" {
				limit = 3 * atOnce // nothing tells it from a slow one but the time-out, 1 s
			}
			forEachTransport(t, func(t *testing.T, via transport) {
				for _, name := range []string{"fresh", "before"} {
					key := keyFor(via, name)
					a := in.client(via).pay(key, amount, key)
					wantRefusal(t, key, a, "unavailable")
					if a.took > limit {
						t.Errorf("%s = %v, want it within %v", key, a, limit)
					}
				}
				wantNoPayment(t, in.client(via), keyFor(via, "fresh"))
			})

			d.end(p)
			in.waitReady(t, 200)
			for _, via := range transports {
				key := keyFor(via, "before")
				wantPayment(t, "repeat afterwards over "+via.String(), in.client(via).payWithRetries(key, amount, key), before[via])
			}
			payFresh(t, in)
		})
	}
}

// Redis goes away exactly when the outcomes are to be stored: the clients have
// their answers, the locks are kept, and repeats wait until it is stored.
func TestRedisDownAtTheSaveKeepsTheLock(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.redisProxy()
	in, other := s.start("one", throughRedis(p), withLatency(victimLatency)), s.start("other")
	all := in.startPaymentsUpTo(t, "unsaved", "at=after-ledger")
	outages[0].begin(p)
	want := map[transport]payment{}
	for _, r := range all {
		want[r.via] = wantOnePayment(t, other.client(r.via), r.key)
		wantPayment(t, "answer over "+r.via.String(), <-r.done, want[r.via])
	}

	// Longer than the session: the holder lives, and so do its locks.
	for end := time.Now().Add(sessionTimeout + 2*time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		for _, r := range all {
			wantInProgress(t, "repeat elsewhere", other.client(r.via), r.key)
			wantInProgress(t, "repeat here", in.client(r.via), r.key)
		}
	}
	outages[0].end(p)
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		for _, at := range []*instance{other, in} {
			wantReplay(t, "repeat afterwards at "+at.name, at.client(r.via).payWithRetries(r.key, amount, r.key), want[r.via])
		}
		wantOnePayment(t, other.client(r.via), r.key)
	})
	eventually(t, "release of the locks", func() error {
		if locks := s.locks(s.zooKeeper()); len(locks) > 0 {
			return errors.Join(errNotYet, fmt.Errorf("locks %q", locks))
		}
		return nil
	})
}
