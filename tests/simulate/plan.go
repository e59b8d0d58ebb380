package simulate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
)

// Plan is everything that a seed decides before a run.
type Plan struct {
	Seed uint64

	Processes int
	Keys      int
	Clients   int
	Session   time.Duration // the time-out of sessions
	Tick      time.Duration
	Lag       time.Duration // of followers
	Wait      time.Duration // how long duplicates wait for a running request

	Busy     time.Duration // bounds the pauses between two uses of recipes
	Hold     time.Duration // bounds how long their locks are held
	Patience time.Duration // bounds how long they are waited for
	Storm    time.Duration // how long faults happen
	Network  simnet.Profile
	Fates    simnet.Fates
	Speeds   []float64 // of the ensemble's clock and of each process's lease clock

	Combined bool // lock and record of a key in one call, and the locks in the store
	Markers  bool // durable markers
	Fenced   bool // the ledger checks fences
	Distant  bool // the network is between the processes and a ledger without fences
	Accept   bool // a store that has lost its records is used on at once

	Faults []Fault
}

// Fault is something that goes wrong.
type Fault struct {
	Kind FaultKind
	At   time.Duration // since the start, unless Step is set
	Step int           // the n-th step of the process, if positive
	// AtLedger counts only the steps right before and right after a call of the ledger.
	AtLedger bool
	Process  int
	Server   int
	For      time.Duration
}

// FaultKind is the kind of a fault.
type FaultKind uint8

// The kinds of faults.
const (
	CrashProcess    FaultKind = iota // it starts again after For
	PauseProcess                     // for For
	CutConnections                   // between the process and ZooKeeper
	Deafen                           // nothing from the server reaches the process for For
	Mute                             // nothing from the process reaches the server for For
	MuteStore                        // nothing from the process reaches the store for For
	MuteLedger                       // nothing from the process reaches the ledger for For
	Hang                             // nothing passes between the process and all servers for For
	IsolateServer                    // from the other servers, for For
	CrashServer                      // for For
	IsolateLeader                    // whoever leads then
	CrashLeader                      // whoever leads then
	ExpireSession                    // of the process
	StoreDown                        // for For
	StoreFallsBack                   // loses the changes of the last For
	StoreLosesAll                    // its records
	Stall                            // one answer of the servers comes late, and then nothing passes
	StoreFull                        // takes no writes for For, of all keys or of a part of them
	StoreStalls                      // does nothing for For, and then what it was asked for
	StoreClockAhead                  // for For, and right again
	StoreClockBack                   // for For, and right again
	RestoreServers                   // ZooKeeper is away for For, and comes back with older data
	kinds
)

var kindNames = [...]string{
	"crash process", "pause process", "cut connections of process", "deafen process", "mute process", "mute towards the store process",
	"mute towards the ledger process", "hang process", "isolate server", "crash server", "isolate leader", "crash leader",
	"expire session of process", "store down", "store falls back by", "store loses all", "stall process",
	"store full", "store stalls", "store clock ahead", "store clock back", "restore servers",
}

// String says what happens.
func (f Fault) String() string {
	when := fmt.Sprintf("at %v", f.At)
	if f.Step > 0 {
		when = fmt.Sprintf("at step %d of process %d", f.Step, f.Process)
		if f.AtLedger {
			when += " at the ledger"
		}
	}
	return fmt.Sprintf("%s: %s %d, server %d, for %v", when, kindNames[f.Kind], f.Process, f.Server, f.For)
}

// drift is how much too fast or too slow a clock is at the most. The difference between two
// clocks stays below the 5 % that the session layer allows for.
const drift = 0.024

// dice draws the values of a plan.
type dice struct{ *rand.Rand }

func (d dice) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.Int64N(int64(most-least)+1))
}

// one is true once in so many times.
func (d dice) one(in int) bool { return d.IntN(in) == 0 }

// theme is what the faults of a plan are about.
type theme struct {
	faults []FaultKind
	lag    float64 // most lag of followers, in sessions
	tense  bool    // fast network, clocks at their limits, locks that are held long and waited for
	hasty  bool    // locks are taken and given back all the time
}

// themes are drawn with the same probability.
var themes = []theme{
	{everything, 0.03, false, false},
	{everything, 0.03, false, false},
	{[]FaultKind{Hang, Hang, Hang, IsolateServer, PauseProcess}, 0.01, true, false},
	{[]FaultKind{Stall, Stall, Stall, Hang, PauseProcess}, 0.01, true, false},
	{[]FaultKind{IsolateServer, IsolateLeader, CutConnections, CutConnections, CrashServer, Mute, Deafen}, 0.3, false, true},
	{[]FaultKind{StoreFull, StoreFull, StoreStalls, StoreStalls, StoreClockAhead, StoreClockBack, StoreDown, CrashProcess, PauseProcess}, 0.03, false, false},
	{[]FaultKind{RestoreServers, RestoreServers, CrashProcess, CrashProcess, PauseProcess, CutConnections, CrashServer, IsolateLeader, StoreDown}, 0.03, false, false},
}

// everything is all kinds of faults but the last one, which allows more than the others. Crashes and pauses are
// drawn more often.
var everything = func() (list []FaultKind) {
	for k := range RestoreServers {
		list = append(list, k)
	}
	return append(list, CrashProcess, CrashProcess, CrashProcess, CrashProcess, PauseProcess, PauseProcess, PauseProcess, PauseProcess)
}()

// NewPlan draws the plan of a seed.
func NewPlan(seed uint64) Plan {
	d := dice{simnet.Random(seed, "plan")}
	th := themes[d.IntN(len(themes))]
	p := Plan{
		Seed: seed, Processes: 2 + d.IntN(2), Keys: 1 + d.IntN(4), Clients: 2 + d.IntN(3),
		Session: d.between(2*time.Second, 6*time.Second), Storm: d.between(4*time.Second, 20*time.Second),
		Markers: !d.one(3), Fenced: !d.one(5), Accept: d.one(2),
	}
	share := func(of float64) time.Duration { return time.Duration(of * float64(p.Session)) }
	p.Tick = p.Session / time.Duration(8+d.IntN(8))
	p.Lag = d.between(0, share(th.lag))
	if d.one(2) {
		p.Wait = d.between(0, 2*p.Session)
	}
	p.Busy, p.Hold, p.Patience = share(1/float64(1+d.IntN(10))), share(0.5), share(1)
	p.Network = simnet.Profile{Least: 100 * time.Microsecond, Most: d.between(200*time.Microsecond, 20*time.Millisecond)}
	if !d.one(3) {
		p.Network.SlowEvery, p.Network.Slowest = 5+d.IntN(100), d.between(10*time.Millisecond, p.Session/2)
	}
	if !d.one(3) {
		p.Fates = simnet.Fates{Lost: 5 + d.IntN(40), ReplyLost: 3 + d.IntN(30), Late: 3 + d.IntN(30), Twice: 3 + d.IntN(30), Latest: d.between(time.Second, 2*p.Session)}
	}
	for range p.Processes + 1 {
		p.Speeds = append(p.Speeds, 1+drift*(2*d.Float64()-1))
	}
	if th.hasty {
		p.Busy, p.Hold = share(0.02), share(0.1)
	}
	if th.tense {
		p.Network = simnet.Profile{Least: 100 * time.Microsecond, Most: 2 * time.Millisecond}
		p.Busy, p.Hold, p.Patience = share(0.05), share(2), share(4)
		for i := range p.Speeds { // the ensemble expires early, and processes believe long
			p.Speeds[i] = 1 - drift
		}
		p.Speeds[0] = 1 + drift
	}
	for range 1 + d.IntN(8) {
		p.Faults = append(p.Faults, p.drawFault(d, th))
	}
	// After a restore only the fences of the ledger keep an earlier holder out.
	if p.has(RestoreServers) && !p.Fenced {
		p.Faults = slices.DeleteFunc(p.Faults, func(f Fault) bool { return f.Kind == RestoreServers })
	}
	if own := (dice{simnet.Random(seed, "combined")}); own.one(3) {
		p.combine(own)
	}
	return p
}

// has reports whether one of these faults happens.
func (p *Plan) has(kinds ...FaultKind) bool {
	return slices.ContainsFunc(p.Faults, func(f Fault) bool { return slices.Contains(kinds, f.Kind) })
}

func (p *Plan) drawFault(d dice, th theme) Fault {
	f := Fault{
		Kind: th.faults[d.IntN(len(th.faults))], At: d.between(0, p.Storm), Process: d.IntN(p.Processes), Server: d.IntN(servers),
		For: d.between(p.Session/20, 2*p.Session),
	}
	if d.one(2) {
		f.For = d.between(p.Session*9/10, 2*p.Session)
	}
	byStep := f.Kind <= CutConnections || f.Kind == ExpireSession
	if f.Kind == Stall || byStep && d.one(2) {
		f.Step = 1 + d.IntN(60)
		if d.one(3) {
			f.Step, f.AtLedger = 1+d.IntN(8), true
		}
	}
	switch {
	case f.Kind == PauseProcess && !p.Fenced:
		f.Kind = CutConnections
	case !p.Markers && (f.Kind == StoreFallsBack || f.Kind == StoreLosesAll):
		f.Kind = StoreDown // such a store may run a key again
	}
	return f
}

// String lists the plan.
func (p *Plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d processes, %d keys, %d clients, session %v, tick %v, lag %v, storm %v, wait %v, busy %v, hold %v, patience %v, combined %v, markers %v, fenced %v, accept %v\n",
		p.Seed, p.Processes, p.Keys, p.Clients, p.Session, p.Tick, p.Lag, p.Storm, p.Wait, p.Busy, p.Hold, p.Patience, p.Combined, p.Markers, p.Fenced, p.Accept)
	fmt.Fprintf(&b, "  network %+v, fates %+v, speeds %.4f\n", p.Network, p.Fates, p.Speeds)
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "  %v\n", f)
	}
	return b.String()
}
