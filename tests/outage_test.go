package tests

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// atOnce is the most that an answer may take where a server is known to be
// down: no hang, on a busy machine.
const atOnce = time.Second

// waitReady waits until /readyz has this status.
func (in *instance) waitReady(t testing.TB, status int) {
	t.Helper()
	eventually(t, fmt.Sprintf("readiness %d of %s", status, in.name), func() error {
		if a := in.demo().ready(); a.status != status {
			return fmt.Errorf("%w: %v", errNotYet, a)
		}
		return nil
	})
}

// unavailable fails the test unless the answer is a refusal of the middleware
// that asks to come back, and came at once.
func unavailable(t testing.TB, what string, a answer, code string) {
	t.Helper()
	refused(t, what, a, code)
	if a.took > atOnce {
		t.Errorf("%s = %v, want it within %v", what, a, atOnce)
	}
}

// down is a way to take ZooKeeper away from an instance, and to give it back.
type down struct {
	name     string
	down, up func(p *testserver.Proxy)
}

var downs = []down{
	{"refuses connections",
		func(p *testserver.Proxy) { p.Refuse(true); p.Cut() },
		func(p *testserver.Proxy) { p.Refuse(false) }},
	{"does not answer",
		func(p *testserver.Proxy) { p.BlackHole(testserver.Both) },
		func(p *testserver.Proxy) { p.Restore() }},
}

func TestZooKeeperDownRefusesFreshKeysAndReplays(t *testing.T) {
	for _, d := range downs {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := s.zooKeeperProxy()
			in := s.start("one", throughZooKeeper(p))
			before := payBefore(t, in)
			in.waitReady(t, 200)

			d.down(p)
			for _, r := range in.payOverEach("fresh") { // nobody knows of the outage yet
				a := <-r.done
				refused(t, "first fresh key over "+r.via.String(), a, "unavailable")
				if a.took > 3*atOnce {
					t.Errorf("first fresh key = %v, want it within the lock time-out of 2 s", a)
				}
			}
			in.waitReady(t, 503)
			overEach(t, func(t *testing.T, via transport) {
				c, fresh, old := in.over(via), keyOver(via, "fresh"), keyOver(via, "before")
				for range 3 {
					unavailable(t, "fresh key", c.pay(fresh, amount, fresh), "unavailable")
					replayed(t, "repeat", c.pay(old, amount, old), before[via])
				}
				paidNever(t, c, fresh)
			})

			d.up(p)
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
		key := keyOver(via, "before")
		a := in.over(via).payUntil(patience, key, amount, key)
		paid[via] = paidOnce(t, in.over(via), key)
		original(t, "payment before the outage over "+via.String(), a, paid[via])
	}
	return paid
}

// payFresh pays over each transport what the outage has kept from being paid.
func payFresh(t *testing.T, in *instance) {
	t.Helper()
	for _, via := range transports {
		key := keyOver(via, "fresh")
		a := in.over(via).payUntil(patience, key, amount, key)
		original(t, "fresh key afterwards over "+via.String(), a, paidOnce(t, in.over(via), key))
	}
}

// The server itself is killed and comes back, with requests under way.
func TestZooKeeperKilledAndRestarted(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	s := newSystemOn(t, z.Hosts())
	in := s.start("one", latency(victimLatency))
	all := in.reachOverEach(t, "during", "at=before-ledger")
	z.Kill()
	in.waitReady(t, 503)
	for i, r := range all { // paid if the lease was still trusted at the write, else refused
		all[i].done = answered(<-r.done)
	}
	for _, via := range transports {
		unavailable(t, "fresh key", in.over(via).pay(keyOver(via, "fresh"), amount, "fresh"), "unavailable")
	}
	z.Restart()
	in.waitReady(t, 200)
	overEachOf(t, all, func(t *testing.T, r running) {
		c := in.over(r.via)
		retry := c.payUntil(patience, r.key, amount, r.key)
		want := paidOnce(t, c, r.key)
		original(t, "retry", retry, want)
		if a := <-r.done; a.paid() && a.payment != want {
			t.Errorf("first answer = %v, want %v", a, want)
		}
	})
}

func TestRedisDownRefusesAtOnce(t *testing.T) {
	for _, d := range downs {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := s.redisProxy()
			in := s.start("one", throughRedis(p))
			before := payBefore(t, in)
			in.waitReady(t, 200)

			d.down(p)
			in.waitReady(t, 503)
			limit := atOnce
			if d.name == "does not answer" {
				limit = 3 * atOnce // nothing tells it from a slow one but the time-out, 1 s
			}
			overEach(t, func(t *testing.T, via transport) {
				for _, name := range []string{"fresh", "before"} {
					key := keyOver(via, name)
					a := in.over(via).pay(key, amount, key)
					refused(t, key, a, "unavailable")
					if a.took > limit {
						t.Errorf("%s = %v, want it within %v", key, a, limit)
					}
				}
				paidNever(t, in.over(via), keyOver(via, "fresh"))
			})

			d.up(p)
			in.waitReady(t, 200)
			for _, via := range transports {
				key := keyOver(via, "before")
				original(t, "repeat afterwards over "+via.String(), in.over(via).payUntil(patience, key, amount, key), before[via])
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
	in, other := s.start("one", throughRedis(p), latency(victimLatency)), s.start("other")
	all := in.reachOverEach(t, "unsaved", "at=after-ledger")
	downs[0].down(p)
	want := map[transport]payment{}
	for _, r := range all {
		want[r.via] = paidOnce(t, other.over(r.via), r.key)
		original(t, "answer over "+r.via.String(), <-r.done, want[r.via])
	}

	// Longer than the session: the holder lives, and so do its locks.
	for end := time.Now().Add(sessionTimeout + 2*time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		for _, r := range all {
			inProgress(t, "repeat elsewhere", other.over(r.via), r.key)
			inProgress(t, "repeat here", in.over(r.via), r.key)
		}
	}
	downs[0].up(p)
	overEachOf(t, all, func(t *testing.T, r running) {
		for _, at := range []*instance{other, in} {
			replayed(t, "repeat afterwards at "+at.name, at.over(r.via).payUntil(patience, r.key, amount, r.key), want[r.via])
		}
		paidOnce(t, other.over(r.via), r.key)
	})
	eventually(t, "release of the locks", func() error {
		if locks := s.locks(s.zooKeeper()); len(locks) > 0 {
			return errors.Join(errNotYet, fmt.Errorf("locks %q", locks))
		}
		return nil
	})
}
