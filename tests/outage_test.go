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

// unavailable fails the test unless the answer is a 503 of the middleware that
// came at once.
func unavailable(t testing.TB, what string, a answer, code string) {
	t.Helper()
	refused(t, what, a, 503, code)
	if a.header.Get("Retry-After") == "" {
		t.Errorf("%s = %v, want Retry-After", what, a)
	}
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
			first := in.demo().pay("before", amount, "before")
			in.waitReady(t, 200)

			d.down(p)
			first503 := in.demo().pay("fresh", amount, "fresh") // nobody knows of the outage yet
			refused(t, "first fresh key", first503, 503, "unavailable")
			if first503.took > 3*atOnce {
				t.Errorf("first fresh key = %v, want it within the lock time-out of 2 s", first503)
			}
			in.waitReady(t, 503)
			for range 3 {
				unavailable(t, "fresh key", in.demo().pay("fresh", amount, "fresh"), "unavailable")
				replay := in.demo().pay("before", amount, "before")
				original(t, "repeat", replay, first.payment)
				if !replay.replayed() {
					t.Errorf("repeat = %v, want it replayed", replay)
				}
			}
			paidNever(t, in.demo(), "fresh")

			d.up(p)
			in.waitReady(t, 200)
			a := in.demo().payUntil(patience, "fresh", amount, "fresh")
			original(t, "fresh key afterwards", a, paidOnce(t, in.demo(), "fresh"))
		})
	}
}

// The server itself is killed and comes back, with a request under way.
func TestZooKeeperKilledAndRestarted(t *testing.T) {
	t.Parallel()
	z := testserver.StartZooKeeper(t)
	s := newSystemOn(t, z.Hosts())
	in := s.start("one", latency(victimLatency))
	const key = "during"
	done := in.demo().paying(key, amount, key)
	in.waitLog(t, "at=before-ledger", op(key))
	z.Kill()
	in.waitReady(t, 503)
	a := <-done // paid if the lease was still trusted at the write, else refused
	unavailable(t, "fresh key", in.demo().pay("fresh", amount, "fresh"), "unavailable")
	z.Restart()
	in.waitReady(t, 200)
	retry := in.demo().payUntil(patience, key, amount, key)
	want := paidOnce(t, in.demo(), key)
	original(t, "retry", retry, want)
	if a.status == 201 && a.payment != want {
		t.Errorf("first answer = %v, want %v", a, want)
	}
}

func TestRedisDownRefusesAtOnce(t *testing.T) {
	for _, d := range downs {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := s.redisProxy()
			in := s.start("one", throughRedis(p))
			first := in.demo().pay("before", amount, "before")
			in.waitReady(t, 200)

			d.down(p)
			in.waitReady(t, 503)
			limit := atOnce
			if d.name == "does not answer" {
				limit = 3 * atOnce // nothing tells it from a slow one but the time-out, 1 s
			}
			for _, key := range []string{"fresh", "before"} {
				a := in.demo().pay(key, amount, key)
				refused(t, key, a, 503, "unavailable")
				if a.took > limit || a.header.Get("Retry-After") == "" {
					t.Errorf("%s = %v, want it within %v, with Retry-After", key, a, limit)
				}
			}
			paidNever(t, in.demo(), "fresh")

			d.up(p)
			in.waitReady(t, 200)
			original(t, "repeat afterwards", in.demo().payUntil(patience, "before", amount, "before"), first.payment)
			a := in.demo().payUntil(patience, "fresh", amount, "fresh")
			original(t, "fresh key afterwards", a, paidOnce(t, in.demo(), "fresh"))
		})
	}
}

// Redis goes away exactly when the outcome is to be stored: the client has its
// answer, the lock is kept, and repeats wait until it is stored.
func TestRedisDownAtTheSaveKeepsTheLock(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.redisProxy()
	in, other := s.start("one", throughRedis(p), latency(2*time.Second)), s.start("other")
	const key = "unsaved"
	done := in.demo().paying(key, amount, key)
	in.waitLog(t, "at=after-ledger", op(key))
	downs[0].down(p)
	want := paidOnce(t, other.demo(), key)
	a := <-done
	original(t, "answer", a, want)

	// Longer than the session: the holder lives, and so does its lock.
	for end := time.Now().Add(sessionTimeout + 2*time.Second); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		inProgress(t, "repeat elsewhere", other.demo(), key)
		inProgress(t, "repeat here", in.demo(), key)
	}
	downs[0].up(p)
	for _, at := range []*instance{other, in} {
		repeat := at.demo().payUntil(patience, key, amount, key)
		original(t, "repeat afterwards", repeat, want)
		if !repeat.replayed() {
			t.Errorf("repeat at %s = %v, want it replayed", at.name, repeat)
		}
	}
	eventually(t, "release of the lock", func() error {
		if locks := s.locks(s.zooKeeper()); len(locks) > 0 {
			return errors.Join(errNotYet, fmt.Errorf("locks %q", locks))
		}
		return nil
	})
	paidOnce(t, other.demo(), key)
}

// The answers of Begin and of Settle are lost, one after the other, and the
// connection with them: applied, but the instance cannot know.
func TestRedisRepliesLostPayOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.redisProxy()
	in := s.start("one", throughRedis(p))
	for i := range 3 { // read, begin, settle
		key := fmt.Sprintf("lost-%d", i)
		match := testserver.Contains(keyID(key).String())
		seen := 0
		dropped := p.DropNextReply(func(r testserver.Request) bool {
			if !match(r) {
				return false
			}
			seen++
			return seen == i+1
		})
		a := in.demo().payUntil(patience, key, amount, key)
		happens(t, "lost reply", dropped)
		original(t, fmt.Sprintf("payment with reply %d lost", i), a, paidOnce(t, in.demo(), key))
	}
}

// Replies of ZooKeeper are lost: to the create of the lock and to its delete.
func TestZooKeeperRepliesLostPayOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.zooKeeperProxy()
	in := s.start("one", throughZooKeeper(p))
	conn := s.zooKeeper()
	for i, what := range []string{"create", "delete"} {
		key := "lost-" + what
		match := testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(lockNode(key)))
		seen := 0
		dropped := p.DropNextReply(func(r testserver.Request) bool {
			if !match(r) {
				return false
			}
			seen++
			return seen == i+1
		})
		a := in.demo().payUntil(patience, key, amount, key)
		happens(t, "lost reply of the "+what, dropped)
		original(t, "payment with the reply of the "+what+" lost", a, paidOnce(t, in.demo(), key))
		s.waitLock(conn, key, false)
	}
}
