// Package guarantee says what a route of an engine gets, and what it needs, as values that can be compared.
//
// A guarantee has no single level. It depends on where an effect happens, and it holds through some hazards and
// not through others. So it is a set of hazards for each kind of effect. The engine works it out from what lock and store say of
// themselves ([Part]) and from the policy of the route.
package guarantee

import (
	"fmt"
	"math/bits"
	"strings"
)

// Effect is where the effect of a handler happens.
type Effect uint8

const (
	// InTransaction is what the handler writes in its joined transaction.
	InTransaction Effect = iota
	// Fenced is an effect at a resource that checks the fence, such as a table behind package fence. The
	// application's word for it is all that the engine has.
	Fenced
	// Keyed is an effect at a system that honours the downstream key for as long as clients repeat. The application's word for it is
	// all that the engine has.
	Keyed
	// Elsewhere is an effect anywhere else.
	Elsewhere
	effects
)

var effectNames = [effects]string{"in the transaction", "at a resource that checks the fence", "at a system that takes the downstream key", "anywhere else"}

// String returns words such as "in the transaction".
func (e Effect) String() string {
	if e >= effects {
		return fmt.Sprintf("effect %d", uint8(e))
	}
	return effectNames[e]
}

// Hazards is a set of what can go wrong.
type Hazards uint8

const (
	// Repeat is a client that repeats its request any number of times, at any instance.
	Repeat Hazards = 1 << iota
	// Outage is a lock service or a store that is away.
	Outage
	// Crash is a process that dies at any moment.
	Crash
	// Pause is a process that is paused for longer than its lock lasts, and goes on.
	Pause
	// ClockStep is a clock of a server that jumps.
	ClockStep
	// ServerLoss is a server that dies with its disk. Another one that has acknowledged its writes takes over.
	ServerLoss
	// FailOver is a lock service or a store that fails over, and loses its latest writes.
	FailOver
	// Loss is a store that loses all of its records, or a lock service that comes back with older data.
	Loss
	// All are all hazards. None covers a key that is older than the policy's KeyTTL, which is a new key.
	All = Repeat | Outage | Crash | Pause | ClockStep | ServerLoss | FailOver | Loss
)

var hazardNames = []string{"repeats", "an outage", "a crash", "a pause", "a step of a clock", "loss of a server", "a fail-over", "loss of the records"}

// Has reports whether h has all of o.
func (h Hazards) Has(o Hazards) bool { return h&o == o }

// String lists the hazards, such as "repeats, a crash" or "every hazard but a pause".
func (h Hazards) String() string {
	switch missing := All &^ h; {
	case missing == 0:
		return "every hazard"
	case bits.OnesCount8(uint8(missing)) <= 4:
		return "every hazard but " + missing.list()
	}
	return h.list()
}

// list names each hazard.
func (h Hazards) list() string {
	var all []string
	for i, name := range hazardNames {
		if h&(1<<i) != 0 {
			all = append(all, name)
		}
	}
	if len(all) == 0 {
		return "nothing"
	}
	return strings.Join(all, ", ")
}

// Part is what a lock or a store says of itself.
type Part struct {
	// Name is that of the set-up, such as "ZooKeeper".
	Name string
	// Keeps has the hazards through which a lock stays exclusive, or a store keeps its records or refuses to run without them.
	Keeps Hazards
	// Remembers has the hazards through which a lock service keeps keys that the store has lost, as durable markers do.
	Remembers Hazards
	// Supplies says of a hazard that is missing what would supply it.
	Supplies map[Hazards]string
	// Conditions are what has to be true for Keeps and cannot be seen by the part.
	Conditions []string
}

// Promise is what one kind of effect gets.
type Promise struct {
	// Once has the hazards through which the effect happens at most once per key.
	Once Hazards
	// Doubt has the hazards after which nobody may know whether it happened, until a person decides.
	Doubt Hazards
}

// Guarantee is what a route gets.
type Guarantee struct {
	Route   string
	Setup   string // such as "lock in ZooKeeper, records in Redis"
	Effects [effects]Promise
	// Conditions are what has to be true and cannot be seen by the engine, such as "a repeat comes within 168h0m0s".
	Conditions []string
	missing    map[Effect]map[Hazards]string
}

// Of returns the promise for an effect.
func (g *Guarantee) Of(e Effect) Promise {
	if e >= effects {
		return Promise{}
	}
	return g.Effects[e]
}

// String is one line, with the route, the set-up and the promise.
func (g *Guarantee) String() string { return g.Route + ": " + g.Setup + ": " + g.Line() }

// Line is the promise alone.
func (g *Guarantee) Line() string {
	var parts []string
	how := "at most once "
	for _, e := range []Effect{InTransaction, Elsewhere, Fenced, Keyed} {
		p := g.Effects[e]
		if p.Once == 0 {
			continue
		}
		part := fmt.Sprintf("%s through %s", e, p.Once)
		if p.Doubt != 0 {
			part += fmt.Sprintf(" (in doubt after %s)", p.Doubt.list())
		}
		if e == InTransaction {
			part = "exactly once " + part + ", because what loses the record loses what was written with it"
		} else {
			part, how = how+part, ""
		}
		parts = append(parts, part)
	}
	line := strings.Join(parts, "; ")
	if len(g.Conditions) > 0 {
		line += "; if " + strings.Join(g.Conditions, ", and if ")
	}
	return line
}

// Need is what a route needs. The zero Need is nothing.
type Need struct {
	Effect  Effect
	Through Hazards
	// NoDoubt wants that no outcome waits for a person.
	NoDoubt bool
}

// Needs with plain names.
var (
	// ExactlyOnceInTransaction is for rows that the handler writes in its joined transaction.
	ExactlyOnceInTransaction = Need{InTransaction, Repeat | Outage | Crash | Pause | ClockStep, true}
	// AtMostOnce is for an effect anywhere, through repeats, outages and crashes.
	AtMostOnce = Need{Elsewhere, Repeat | Outage | Crash, false}
	// AtMostOnceThroughPause is for an effect at a resource that checks the fence.
	AtMostOnceThroughPause = Need{Fenced, Repeat | Outage | Crash | Pause, false}
	// AtMostOnceThroughLoss is the same through fail-overs, steps of clocks and the loss of all records.
	AtMostOnceThroughLoss = Need{Fenced, All, false}
	// OncePerDownstreamKey is for a system that honours the downstream key.
	OncePerDownstreamKey = Need{Keyed, All, false}
)

// String says the need in words.
func (n Need) String() string {
	how := "at most once"
	if n.Effect == InTransaction {
		how = "exactly once"
	}
	s := fmt.Sprintf("%s %s through %s", how, n.Effect, n.Through)
	if n.NoDoubt {
		s += ", with no outcome in doubt"
	}
	return s
}

// possible is what the best set-up gives to an effect.
var possible = [effects]Hazards{All, All, All, All &^ Pause}

// Meets returns nil if the guarantee has all of a need. The error names what is missing and what would supply it.
func (g *Guarantee) Meets(n Need) error {
	if n == (Need{}) {
		return nil
	}
	if n.Effect >= effects || n.Through == 0 || n.Through&^All != 0 {
		return fmt.Errorf("route %q requires %s, which is no requirement", g.Route, n)
	}
	if never := n.Through &^ possible[n.Effect]; never != 0 {
		return fmt.Errorf("route %q requires %s, and no set-up gives that through %s: let the resource check the fence", g.Route, n, never)
	}
	p := g.Effects[n.Effect]
	lacking := n.Through &^ p.Once
	doubt := p.Doubt & n.Through
	if lacking == 0 && (doubt == 0 || !n.NoDoubt) {
		return nil
	}
	why := g.reasons(n.Effect, lacking)
	if lacking == 0 {
		why = append(why, fmt.Sprintf("the outcome is in doubt after %s: set InDoubt to AskResolver in its policy, or join the record to the transaction", doubt))
	}
	return fmt.Errorf("route %q requires %s, and gets less from %s: %s", g.Route, n, g.Setup, strings.Join(why, "; "))
}

// reasons says for hazards that are missing what would supply them, each reason once.
func (g *Guarantee) reasons(e Effect, lacking Hazards) (why []string) {
	for i := range hazardNames {
		reason, of := g.missing[e][1<<i], Hazards(0)
		for j := range hazardNames {
			if h := Hazards(1 << j); lacking&h != 0 && g.missing[e][h] == reason {
				of |= h
			}
		}
		if lacking&(1<<i) != 0 {
			lacking &^= of
			why = append(why, fmt.Sprintf("not through %s: %s", of.list(), reason))
		}
	}
	return why
}
