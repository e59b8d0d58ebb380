package tests

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const (
	retryingCallers = 4
	retryingLeast   = 12 // calls of each
	// mortalLatency opens windows of half its length on both sides of the
	// ledger write.
	mortalLatency = 500 * time.Millisecond
	// retryLimit ends a call that nothing else has ended.
	retryLimit = 5 * time.Minute
)

// killMoment is when an instance is killed: so long after the log has its first
// line of a step, or after the start where there is no step.
type killMoment struct {
	step  string
	delay time.Duration
}

// killMoments are the moments of one run, in random order: twice in the window
// before the ledger write, twice in the one behind it, once when an answer is on
// its way, and anywhere.
func killMoments(r *rand.Rand) []killMoment {
	m := []killMoment{
		{step: "at=before-ledger"}, {step: "at=before-ledger"},
		{step: "at=after-ledger"}, {step: "at=after-ledger"},
		{step: "at=answered"},
		{step: "at=before-ledger", delay: time.Duration(r.Int64N(int64(2 * mortalLatency)))},
		{delay: time.Duration(r.Int64N(int64(2 * time.Second)))},
	}
	r.Shuffle(len(m), func(i, j int) { m[i], m[j] = m[j], m[i] })
	return m
}

// TestClientsPayOnceUnderKills lets clients make calls, each of them once and
// without a key, while the one instance is killed at random moments and started
// again on the same ports. Keys and retries are the client interceptor's. Each
// call ends with one payment, and with the answer that it has in a run without
// kills. The seed decides on the moments; IDEMKEEPER_SEED sets it.
func TestClientsPayOnceUnderKills(t *testing.T) {
	t.Parallel()
	for _, side := range retryingSides {
		t.Run(side.name, func(t *testing.T) {
			t.Parallel()
			seed := killSeed(t)
			run := &retriedRun{t: t, side: side}
			mortal := &mortal{system: newSystem(t)}
			mortal.launch()
			run.start(mortal.in, func(made int) bool { return made >= retryingLeast && mortal.over.Load() })
			mortal.killAll(rand.New(rand.NewPCG(seed, 0)))
			happens(t, "end of all calls", run.done)
			run.audit(mortal.in)

			calm := &retriedRun{t: t, side: side}
			quiet := newSystem(t).start("the undisturbed")
			calm.start(quiet, func(made int) bool { return made >= run.longest() })
			happens(t, "end of the undisturbed calls", calm.done)
			calm.audit(quiet)
			run.compare(calm)

			t.Logf("%d kills: %d attempts before the ledger write, %d behind it, %d at the write itself",
				mortal.kills, mortal.before, mortal.behind, mortal.at)
			t.Logf("%d calls, %d retries, %d replayed answers; undisturbed: %d calls, %d retries",
				len(run.replies), run.retries(), run.replayed(), len(calm.replies), calm.retries())
		})
	}
}

func killSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if v := os.Getenv("IDEMKEEPER_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("IDEMKEEPER_SEED: %v", err)
		}
	}
	t.Logf("IDEMKEEPER_SEED=%d", seed)
	return seed
}

// mortal is an instance that is killed, and started again where it was.
type mortal struct {
	*system
	in   *instance   // that runs
	over atomic.Bool // set with the last kill

	kills              int
	before, behind, at int // attempts that a kill has ended, by where they were
}

// killAll kills at all moments, and goes on until both windows were hit for
// certain: a starved test may come too late for one.
func (m *mortal) killAll(r *rand.Rand) {
	m.t.Helper()
	defer m.over.Store(true)
	for _, at := range killMoments(r) {
		m.kill(at)
	}
	for end := time.Now().Add(2 * patience); m.before == 0 || m.behind == 0; {
		if time.Now().After(end) {
			m.t.Fatalf("%d kills hit %d attempts before the ledger write and %d behind it, want both", m.kills, m.before, m.behind)
		}
		if m.before == 0 {
			m.kill(killMoment{step: "at=before-ledger"})
		} else {
			m.kill(killMoment{step: "at=after-ledger"})
		}
	}
}

func (m *mortal) kill(at killMoment) {
	m.t.Helper()
	if at.step != "" {
		m.in.waitLog(m.t, at.step)
	}
	time.Sleep(at.delay) // the moment itself: nothing is waited for
	m.in.kill(m.t)
	m.kills++
	m.count()
	m.launch()
}

var stepLine = regexp.MustCompile(` at=(\S+) op=(\w+)`)

// count looks where the attempts of the dead were.
func (m *mortal) count() {
	last := map[string]string{} // operation to its last step
	for line := range strings.Lines(m.in.stderr.tail(1 << 20)) {
		if step := stepLine.FindStringSubmatch(line); step != nil {
			last[step[2]] = step[1]
		}
	}
	for _, step := range last {
		switch step {
		case "before-ledger":
			m.before++
		case "checked":
			m.at++
		case "after-ledger":
			m.behind++
		}
	}
}

// launch starts an instance, on the ports of the one before. Somebody else may
// have taken one of them in between: it is tried again.
func (m *mortal) launch() {
	m.t.Helper()
	if m.in == nil {
		host := ownLoopback() + ":0"
		m.in = m.start("the mortal", latency(mortalLatency), flags("--http-addr", host, "--grpc-addr", host))
		return
	}
	addr, rpc := m.in.addr, m.in.rpc
	eventually(m.t, "start on "+addr+" and "+rpc, func() error {
		in := spawnInstance(m.t, fmt.Sprintf("the mortal, risen %d times", m.kills),
			m.flags(latency(mortalLatency), flags("--http-addr", addr, "--grpc-addr", rpc))...)
		eventually(m.t, "ready line or end of "+in.name, func() error {
			if _, ready := in.stdout.find("ready "); ready || !in.running() {
				return nil
			}
			return errNotYet
		})
		if _, taken := in.stderr.find("address already in use"); taken {
			return in.ended()
		}
		if !in.running() {
			m.t.Fatalf("%s has ended with code %d:\n%s", in.name, in.code, in.stderr.tail(20))
		}
		in.addr, in.rpc = addr, rpc
		m.in = in
		return nil
	})
}

// ownLoopback is an address where nobody else listens, so that no request comes
// to another test's server that got the port of a dead instance. Only Linux
// has more than one without being told.
func ownLoopback() string {
	if runtime.GOOS != "linux" {
		return "127.0.0.1"
	}
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(250), rand.IntN(250), 1+rand.IntN(250))
}
