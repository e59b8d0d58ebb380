package tests

import (
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// victim is an instance that a test stops in the middle of a request. It
// reaches its servers through proxies, which can hold a message at the moment
// that the test wants; what is held arrives later, after the victim's death.
type victim struct {
	*instance
	zk, redis *testserver.Proxy
	late      []*testserver.Hold
}

// victimLatency opens windows of two seconds on both sides of the ledger write.
const victimLatency = 4 * time.Second

func (s *system) startVictim(opts ...launchOption) *victim {
	s.t.Helper()
	v := &victim{zk: s.zooKeeperProxy(), redis: s.redisProxy()}
	opts = append(opts, throughZooKeeper(v.zk), throughRedis(v.redis), latency(victimLatency))
	v.instance = s.start("the victim", opts...)
	return v
}

// deliver lets everything that was held back go to its destination.
func (v *victim) deliver() {
	for _, h := range v.late {
		h.Release()
	}
}

// point is a moment in the life of a request.
type point struct {
	name string
	// reach pays with the key and returns once the victim has come to the
	// point, with the answer to come.
	reach func(t testing.TB, v *victim, key string) <-chan answer

	begun   bool // the store knows of the attempt
	paid    bool // the money has moved
	stored  bool // the store knows the outcome
	reports bool // who wakes up here has an outcome to store
}

// points are the moments at which a crash leaves different traces, in their
// order (design.md, section 7).
var points = []point{
	{name: "begin is on its way", reach: reachBegin((*testserver.Proxy).HoldNext)},
	{name: "begun, and the victim does not know", reach: reachBegin((*testserver.Proxy).HoldNextReply), begun: true},
	{name: "before the ledger write", reach: reachLog("at=before-ledger"), begun: true, reports: true},
	{name: "after the ledger write", reach: reachLog("at=after-ledger"), begun: true, paid: true, reports: true},
	{name: "the outcome is on its way", reach: reachSave((*testserver.Proxy).HoldNext), begun: true, paid: true, reports: true},
	{name: "stored, and the victim does not know", reach: reachSave((*testserver.Proxy).HoldNextReply), begun: true, paid: true, stored: true},
	{name: "answered, and the lock not given back", reach: reachRelease, begun: true, paid: true, stored: true},
}

// hold is how a proxy keeps a message back: the request or its reply.
type hold func(*testserver.Proxy, testserver.Match) *testserver.Hold

// scriptOn matches the calls of scripts on the record of a key. The scripts
// have to be known to the server: they are sent in full otherwise.
func scriptOn(key string) testserver.Match {
	return testserver.All(testserver.Contains("evalsha"), testserver.Contains(keyID(key).String()))
}

func reachBegin(keep hold) func(testing.TB, *victim, string) <-chan answer {
	return func(t testing.TB, v *victim, key string) <-chan answer {
		h := keep(v.redis, scriptOn(key))
		v.late = append(v.late, h)
		done := v.demo().paying(key, amount, key)
		happens(t, "begin", h.Held())
		return done
	}
}

func reachLog(step string) func(testing.TB, *victim, string) <-chan answer {
	return func(t testing.TB, v *victim, key string) <-chan answer {
		done := v.demo().paying(key, amount, key)
		v.waitLog(t, step, op(key))
		return done
	}
}

func reachSave(keep hold) func(testing.TB, *victim, string) <-chan answer {
	return func(t testing.TB, v *victim, key string) <-chan answer {
		done := reachLog("at=after-ledger")(t, v, key)
		h := keep(v.redis, scriptOn(key))
		v.late = append(v.late, h)
		happens(t, "save", h.Held())
		return done
	}
}

// reachRelease holds the delete of the lock's znode, which follows behind the
// answer.
func reachRelease(t testing.TB, v *victim, key string) <-chan answer {
	done := reachLog("at=after-ledger")(t, v, key)
	h := v.zk.HoldNext(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(lockNode(key))))
	v.late = append(v.late, h)
	happens(t, "release", h.Held())
	return done
}
