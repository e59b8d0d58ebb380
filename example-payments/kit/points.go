package kit

import (
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Amount is what most tests pay.
const Amount = 1250

// Victim is an instance that a test stops in the middle of requests. It reaches
// its servers through proxies. A proxy can hold a message and deliver it after the
// victim's death.
type Victim struct {
	*Instance
	system    *System
	zk, Redis *testserver.Proxy
	held      []*testserver.Hold
}

// VictimLatency opens windows of two seconds on both sides of the ledger write.
const VictimLatency = 4 * time.Second

// StartVictim starts an instance that the test is going to stop.
func (s *System) StartVictim(opts ...LaunchOption) *Victim {
	s.T.Helper()
	v := &Victim{system: s, zk: s.ZooKeeperProxy(), Redis: s.RedisProxy()}
	opts = append(opts, ThroughZooKeeper(v.zk), ThroughRedis(v.Redis), WithLatency(VictimLatency))
	v.Instance = s.Start("the victim", opts...)
	return v
}

// SystemWithVictim has a victim and another instance that gets the retries. The
// other one has paid before, so that Redis knows the scripts.
func SystemWithVictim(t *testing.T, opts ...LaunchOption) (*System, *Victim, *Instance) {
	t.Helper()
	t.Parallel()
	s := NewSystem(t)
	other := s.Start("the other", opts...)
	if a := other.HTTPClient().PayWithRetries("warm-up", 1, "warm-up"); !a.IsPayment() {
		t.Fatalf("first payment = %v, want it made", a)
	}
	return s, s.StartVictim(opts...), other
}

// keepHold keeps a message back until ReleaseHeld.
func (v *Victim) keepHold(h *testserver.Hold) *testserver.Hold {
	v.held = append(v.held, h)
	return h
}

// ReleaseHeld lets everything that was held back go to its destination.
func (v *Victim) ReleaseHeld() {
	for _, h := range v.held {
		h.Release()
	}
}

// point is a moment in the life of a request.
type point struct {
	Name    string
	PayUpTo UpTo

	Begun              bool // the store knows of the attempt
	Paid               bool // the money has moved
	Stored             bool // the store knows the outcome
	ReportsWhenResumed bool // a holder that resumes here has an outcome to store
	AbortsWhenResumed  bool // a holder that resumes here gives the attempt back and does not run it
}

// Points are the moments at which a crash leaves different traces, in their
// order (design.md, section 7).
var Points = []point{
	{Name: "begin is on its way", PayUpTo: UpToRedisCall((*testserver.Proxy).HoldNext, ScriptOn)},
	{Name: "begun, and the victim does not know", PayUpTo: UpToRedisCall((*testserver.Proxy).HoldNextReply, ScriptOn), Begun: true, AbortsWhenResumed: true},
	{Name: "before the ledger write", PayUpTo: upToLogLine("at=before-ledger"), Begun: true, ReportsWhenResumed: true},
	{Name: "after the ledger write", PayUpTo: upToLogLine("at=after-ledger"), Begun: true, Paid: true, ReportsWhenResumed: true},
	{Name: "the outcome is on its way", PayUpTo: UpToRedisCall((*testserver.Proxy).HoldNext, saveOf), Begun: true, Paid: true, ReportsWhenResumed: true},
	{Name: "stored, and the victim does not know", PayUpTo: UpToRedisCall((*testserver.Proxy).HoldNextReply, saveOf), Begun: true, Paid: true, Stored: true},
	{Name: "answered, and the lock not given back", PayUpTo: upToRelease, Begun: true, Paid: true, Stored: true},
}

// MarkPoints are those that an instance that leaves durable markers comes to beside
// the others.
var MarkPoints = []point{
	{Name: "the marker is on its way", PayUpTo: upToDelete((*testserver.Proxy).HoldNext, atLock), Begun: true},
	{Name: "marked, and the victim does not know", PayUpTo: upToDelete((*testserver.Proxy).HoldNextReply, atLock), Begun: true},
}

// holdFunc is how a proxy holds a message back: the request or its reply.
type holdFunc func(*testserver.Proxy, testserver.Match) *testserver.Hold

// ScriptOn matches the calls of scripts on the record of a key. The scripts
// have to be known to the server: they are sent in full otherwise.
func ScriptOn(key string) testserver.Match {
	return testserver.All(testserver.Contains("evalsha"), testserver.Contains(KeyID(key).String()))
}

// saveOf matches the script that stores the payment of a key.
func saveOf(key string) testserver.Match {
	return testserver.All(ScriptOn(key), testserver.Contains("succeeded"))
}

// deleteOf matches the delete of a lock: within a Multi its opcode, a flag, an
// unused error code and the path's length go ahead of the path.
func deleteOf(path string) testserver.Match {
	head := []byte{0, 0, 0, byte(testserver.OpDelete), 0, 0xff, 0xff, 0xff, 0xff, 0, 0, byte(len(path) >> 8), byte(len(path))}
	return testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(string(head)+path))
}

// UpTo pays over each transport and returns once the victim has come to a
// point with all payments.
type UpTo func(t testing.TB, v *Victim, name string) []RunningPayment

func upToLogLine(step string) UpTo {
	return func(t testing.TB, v *Victim, name string) []RunningPayment {
		t.Helper()
		return v.StartPaymentsUpTo(t, name, step)
	}
}

// UpToRedisCall holds a message to Redis, or its reply, for each payment.
func UpToRedisCall(hold holdFunc, match func(key string) testserver.Match) UpTo {
	return func(t testing.TB, v *Victim, name string) []RunningPayment {
		t.Helper()
		var held []*testserver.Hold
		for _, via := range Transports {
			held = append(held, v.keepHold(hold(v.Redis, match(KeyFor(via, name)))))
		}
		all := v.StartPayments(name)
		for i, h := range held {
			WaitFor(t, "call to Redis over "+all[i].Via.String(), h.Held())
		}
		return all
	}
}

// upToDelete holds the first delete of one of the locks' znodes. All writes go over
// one connection, sometimes several in a Multi, so later ones are held with it. With
// a marker, the first delete moves the lock below its marker.
func upToDelete(hold holdFunc, below func(*Victim) string) UpTo {
	return func(t testing.TB, v *Victim, name string) []RunningPayment {
		t.Helper()
		var deletes []testserver.Match
		for _, via := range Transports {
			deletes = append(deletes, deleteOf(v.system.LockPath(KeyFor(via, name))+below(v)))
		}
		h := v.keepHold(hold(v.zk, func(r testserver.Request) bool {
			return slices.ContainsFunc(deletes, func(match testserver.Match) bool { return match(r) })
		}))
		// Each payment has come to its Begin: none is still connecting when one is held.
		var begun []*testserver.Hold
		for _, via := range Transports {
			begun = append(begun, v.Redis.HoldNextReply(ScriptOn(KeyFor(via, name))))
		}
		all := v.StartPayments(name)
		for i, b := range begun {
			WaitFor(t, "begin over "+all[i].Via.String(), b.Held())
		}
		for _, b := range begun {
			b.Release()
		}
		WaitFor(t, "delete of a lock", h.Held())
		return all
	}
}

func atLock(*Victim) string { return "" }

// belowMarker is where the lock of an instance with markers is.
func belowMarker(v *Victim) string {
	if slices.Contains(v.Cmd.Args, DurableMarkers) {
		return "/lock"
	}
	return ""
}

// upToRelease holds the delete of the locks' znodes, which follows the answers.
func upToRelease(t testing.TB, v *Victim, name string) []RunningPayment {
	t.Helper()
	all := upToDelete((*testserver.Proxy).HoldNext, belowMarker)(t, v, name)
	for i, r := range all {
		all[i].Done = Answered(<-r.Done)
	}
	return all
}

// Answered is an answer that has come already, as one to come.
func Answered(a Answer) <-chan Answer {
	c := make(chan Answer, 1)
	c <- a
	return c
}

// DurableMarkers is the flag of instances that keep durable markers.
const DurableMarkers = "--durable-markers"

// WithMarkers starts instances that keep durable markers.
func WithMarkers(f ...string) LaunchOption {
	return func(l *launch) { l.flags = append(append(l.flags, DurableMarkers), f...) }
}

// outage is a way to take a server away from an instance, and to give it back.
type outage struct {
	Name       string
	Begin, End func(p *testserver.Proxy)
}

// Outages are the ways that tests try.
var Outages = []outage{
	{"refuses connections",
		func(p *testserver.Proxy) { p.Refuse(true); p.Cut() },
		func(p *testserver.Proxy) { p.Refuse(false) }},
	{"does not answer",
		func(p *testserver.Proxy) { p.BlackHole(testserver.Both) },
		func(p *testserver.Proxy) { p.Restore() }},
}
