package tests

import (
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// amount is what most tests pay.
const amount = 1250

// victim is an instance that a test stops in the middle of requests. It reaches
// its servers through proxies. A proxy can hold a message and deliver it after the
// victim's death.
type victim struct {
	*instance
	system    *system
	zk, redis *testserver.Proxy
	held      []*testserver.Hold
}

// victimLatency opens windows of two seconds on both sides of the ledger write.
const victimLatency = 4 * time.Second

func (s *system) startVictim(opts ...launchOption) *victim {
	s.t.Helper()
	v := &victim{system: s, zk: s.zooKeeperProxy(), redis: s.redisProxy()}
	opts = append(opts, throughZooKeeper(v.zk), throughRedis(v.redis), withLatency(victimLatency))
	v.instance = s.start("the victim", opts...)
	return v
}

// systemWithVictim has a victim and another instance that gets the retries. The
// other one has paid before, so that Redis knows the scripts.
func systemWithVictim(t *testing.T, opts ...launchOption) (*system, *victim, *instance) {
	t.Helper()
	t.Parallel()
	s := newSystem(t)
	other := s.start("the other", opts...)
	if a := other.httpClient().payWithRetries("warm-up", 1, "warm-up"); !a.isPayment() {
		t.Fatalf("first payment = %v, want it made", a)
	}
	return s, s.startVictim(opts...), other
}

// keepHold keeps a message back until releaseHeld.
func (v *victim) keepHold(h *testserver.Hold) *testserver.Hold {
	v.held = append(v.held, h)
	return h
}

// releaseHeld lets everything that was held back go to its destination.
func (v *victim) releaseHeld() {
	for _, h := range v.held {
		h.Release()
	}
}

// point is a moment in the life of a request.
type point struct {
	name    string
	payUpTo upToFunc

	begun              bool // the store knows of the attempt
	paid               bool // the money has moved
	stored             bool // the store knows the outcome
	reportsWhenResumed bool // a holder that resumes here has an outcome to store
	abortsWhenResumed  bool // a holder that resumes here gives the attempt back and does not run it
}

// points are the moments at which a crash leaves different traces, in their
// order (design.md, section 7).
var points = []point{
	{name: "begin is on its way", payUpTo: upToRedisCall((*testserver.Proxy).HoldNext, scriptOn)},
	{name: "begun, and the victim does not know", payUpTo: upToRedisCall((*testserver.Proxy).HoldNextReply, scriptOn), begun: true, abortsWhenResumed: true},
	{name: "before the ledger write", payUpTo: upToLogLine("at=before-ledger"), begun: true, reportsWhenResumed: true},
	{name: "after the ledger write", payUpTo: upToLogLine("at=after-ledger"), begun: true, paid: true, reportsWhenResumed: true},
	{name: "the outcome is on its way", payUpTo: upToRedisCall((*testserver.Proxy).HoldNext, saveOf), begun: true, paid: true, reportsWhenResumed: true},
	{name: "stored, and the victim does not know", payUpTo: upToRedisCall((*testserver.Proxy).HoldNextReply, saveOf), begun: true, paid: true, stored: true},
	{name: "answered, and the lock not given back", payUpTo: upToRelease, begun: true, paid: true, stored: true},
}

// markPoints are those that an instance that leaves durable markers comes to beside
// the others.
var markPoints = []point{
	{name: "the marker is on its way", payUpTo: upToDelete((*testserver.Proxy).HoldNext, atLock), begun: true},
	{name: "marked, and the victim does not know", payUpTo: upToDelete((*testserver.Proxy).HoldNextReply, atLock), begun: true},
}

// holdFunc is how a proxy holds a message back: the request or its reply.
type holdFunc func(*testserver.Proxy, testserver.Match) *testserver.Hold

// scriptOn matches the calls of scripts on the record of a key. The scripts
// have to be known to the server: they are sent in full otherwise.
func scriptOn(key string) testserver.Match {
	return testserver.All(testserver.Contains("evalsha"), testserver.Contains(keyID(key).String()))
}

// saveOf matches the script that stores the payment of a key.
func saveOf(key string) testserver.Match {
	return testserver.All(scriptOn(key), testserver.Contains("succeeded"))
}

// deleteOf matches the delete of a lock: within a Multi its opcode, a flag, an
// unused error code and the path's length go ahead of the path.
func deleteOf(path string) testserver.Match {
	head := []byte{0, 0, 0, byte(testserver.OpDelete), 0, 0xff, 0xff, 0xff, 0xff, 0, 0, byte(len(path) >> 8), byte(len(path))}
	return testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(string(head)+path))
}

// upToFunc pays over each transport and returns once the victim has come to a
// point with all payments.
type upToFunc func(t testing.TB, v *victim, name string) []runningPayment

func upToLogLine(step string) upToFunc {
	return func(t testing.TB, v *victim, name string) []runningPayment {
		t.Helper()
		return v.startPaymentsUpTo(t, name, step)
	}
}

// upToRedisCall holds a message to Redis, or its reply, for each payment.
func upToRedisCall(hold holdFunc, match func(key string) testserver.Match) upToFunc {
	return func(t testing.TB, v *victim, name string) []runningPayment {
		t.Helper()
		var held []*testserver.Hold
		for _, via := range transports {
			held = append(held, v.keepHold(hold(v.redis, match(keyFor(via, name)))))
		}
		all := v.startPayments(name)
		for i, h := range held {
			waitFor(t, "call to Redis over "+all[i].via.String(), h.Held())
		}
		return all
	}
}

// upToDelete holds the first delete of one of the locks' znodes. All writes go over
// one connection, sometimes several in a Multi, so later ones are held with it. With
// a marker, the first delete moves the lock below its marker.
func upToDelete(hold holdFunc, below func(*victim) string) upToFunc {
	return func(t testing.TB, v *victim, name string) []runningPayment {
		t.Helper()
		var deletes []testserver.Match
		for _, via := range transports {
			deletes = append(deletes, deleteOf(v.system.lockPath(keyFor(via, name))+below(v)))
		}
		h := v.keepHold(hold(v.zk, func(r testserver.Request) bool {
			return slices.ContainsFunc(deletes, func(match testserver.Match) bool { return match(r) })
		}))
		// Each payment has come to its Begin: none is still connecting when one is held.
		var begun []*testserver.Hold
		for _, via := range transports {
			begun = append(begun, v.redis.HoldNextReply(scriptOn(keyFor(via, name))))
		}
		all := v.startPayments(name)
		for i, b := range begun {
			waitFor(t, "begin over "+all[i].via.String(), b.Held())
		}
		for _, b := range begun {
			b.Release()
		}
		waitFor(t, "delete of a lock", h.Held())
		return all
	}
}

func atLock(*victim) string { return "" }

// belowMarker is where the lock of an instance with markers is.
func belowMarker(v *victim) string {
	if slices.Contains(v.cmd.Args, durableMarkers) {
		return "/lock"
	}
	return ""
}

// upToRelease holds the delete of the locks' znodes, which follows the answers.
func upToRelease(t testing.TB, v *victim, name string) []runningPayment {
	t.Helper()
	all := upToDelete((*testserver.Proxy).HoldNext, belowMarker)(t, v, name)
	for i, r := range all {
		all[i].done = answered(<-r.done)
	}
	return all
}

// answered is an answer that has come already, as one to come.
func answered(a answer) <-chan answer {
	c := make(chan answer, 1)
	c <- a
	return c
}
