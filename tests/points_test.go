package tests

import (
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// victim is an instance that a test stops in the middle of requests. It reaches
// its servers through proxies, which can hold a message at the moment that the
// test wants; what is held arrives later, after the victim's death.
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

// keepHold keeps a message back until deliver.
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
	name string
	// reach pays over each transport and returns once the victim has come to
	// the point with all of it.
	payUpTo func(t testing.TB, v *victim, name string) []runningPayment

	begun              bool // the store knows of the attempt
	paid               bool // the money has moved
	stored             bool // the store knows the outcome
	reportsWhenResumed bool // who wakes up here has an outcome to store
	abortsWhenResumed  bool // who wakes up here gives the attempt back without running it
}

// points are the moments at which a crash leaves different traces, in their
// order (design.md, section 7).
var points = []point{
	{name: "begin is on its way", payUpTo: upToBegin((*testserver.Proxy).HoldNext)},
	{name: "begun, and the victim does not know", payUpTo: upToBegin((*testserver.Proxy).HoldNextReply), begun: true, abortsWhenResumed: true},
	{name: "before the ledger write", payUpTo: upToLogLine("at=before-ledger"), begun: true, reportsWhenResumed: true},
	{name: "after the ledger write", payUpTo: upToLogLine("at=after-ledger"), begun: true, paid: true, reportsWhenResumed: true},
	{name: "the outcome is on its way", payUpTo: upToSave((*testserver.Proxy).HoldNext), begun: true, paid: true, reportsWhenResumed: true},
	{name: "stored, and the victim does not know", payUpTo: upToSave((*testserver.Proxy).HoldNextReply), begun: true, paid: true, stored: true},
	{name: "answered, and the lock not given back", payUpTo: upToRelease, begun: true, paid: true, stored: true},
}

// markPoints are those that an instance that leaves durable markers comes to beside
// the others.
var markPoints = []point{
	{name: "the marker is on its way", payUpTo: upToMarker((*testserver.Proxy).HoldNext), begun: true},
	{name: "marked, and the victim does not know", payUpTo: upToMarker((*testserver.Proxy).HoldNextReply), begun: true},
}

// keep is how a proxy holds a message back: the request or its reply.
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

func upToLogLine(step string) func(testing.TB, *victim, string) []runningPayment {
	return func(t testing.TB, v *victim, name string) []runningPayment {
		return v.startPaymentsUpTo(t, name, step)
	}
}

func upToBegin(k holdFunc) func(testing.TB, *victim, string) []runningPayment {
	return func(t testing.TB, v *victim, name string) []runningPayment {
		return v.startPaymentsUpToRedisCall(t, name, "begin", k, scriptOn)
	}
}

func upToSave(k holdFunc) func(testing.TB, *victim, string) []runningPayment {
	return func(t testing.TB, v *victim, name string) []runningPayment {
		return v.startPaymentsUpToRedisCall(t, name, "save", k, saveOf)
	}
}

// startPaymentsUpToRedisCall holds a message to Redis, or its reply, for each payment.
func (v *victim) startPaymentsUpToRedisCall(t testing.TB, name, what string, k holdFunc, match func(key string) testserver.Match) []runningPayment {
	t.Helper()
	var held []*testserver.Hold
	for _, via := range transports {
		held = append(held, v.keepHold(k(v.redis, match(keyFor(via, name)))))
	}
	all := v.startPayments(name)
	for i, h := range held {
		waitFor(t, what+" over "+all[i].via.String(), h.Held())
	}
	return all
}

// upToMarker holds the transaction that moves a lock below its marker.
func upToMarker(k holdFunc) func(testing.TB, *victim, string) []runningPayment {
	return func(t testing.TB, v *victim, name string) []runningPayment {
		t.Helper()
		return v.startPaymentsUpToDelete(t, name, "marker", k, "")
	}
}

// startPaymentsUpToDelete holds the first delete of one of the locks' znodes, below the paths of
// the locks. All writes go over one connection, several in a Multi at times: what
// comes after the first delete is held with it.
func (v *victim) startPaymentsUpToDelete(t testing.TB, name, what string, k holdFunc, below string) []runningPayment {
	t.Helper()
	var deletes []testserver.Match
	for _, via := range transports {
		deletes = append(deletes, deleteOf(v.system.lockPath(keyFor(via, name))+below))
	}
	h := v.keepHold(k(v.zk, func(r testserver.Request) bool {
		return slices.ContainsFunc(deletes, func(match testserver.Match) bool { return match(r) })
	}))
	all := v.startPayments(name)
	waitFor(t, what, h.Held())
	return all
}

// upToRelease holds the delete of the locks' znodes, which follows the answers.
func upToRelease(t testing.TB, v *victim, name string) []runningPayment {
	t.Helper()
	below := ""
	if slices.Contains(v.cmd.Args, durableMarkers) {
		below = "/lock"
	}
	all := v.startPaymentsUpToDelete(t, name, "release", (*testserver.Proxy).HoldNext, below)
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
