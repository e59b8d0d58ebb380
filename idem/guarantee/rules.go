package guarantee

import (
	"fmt"
	"slices"
	"time"
)

// Setup is what a guarantee follows from.
type Setup struct {
	Route string
	// Joined says that the record commits in the transaction of the handler. Lock and Store are not used then.
	Joined      bool
	Lock, Store Part

	// Of the policy.
	RunsAgain   bool // in doubt the handler runs again
	Resolves    bool // in doubt a resolver is asked
	FailsOpen   bool // it runs without protection while lock or store is away
	CallsOthers bool // in joined mode the downstream key is fixed before the transaction
	GateFirst   bool // with a lock, rejections from before the gate leave the key free
	OptionalKey bool // a request without a key runs, too
	KeyTTL      time.Duration
}

// Of works a guarantee out.
func Of(s Setup) Guarantee {
	g := Guarantee{Route: s.Route, missing: map[Effect]map[Hazards]string{}}
	for e := range effects {
		g.missing[e] = map[Hazards]string{}
	}
	if s.Joined {
		g.joined(s)
	} else {
		g.locked(s)
	}
	for _, c := range slices.Concat(s.Lock.Conditions, s.Store.Conditions) {
		if !slices.Contains(g.Conditions, c) {
			g.Conditions = append(g.Conditions, c)
		}
	}
	if s.OptionalKey {
		g.Conditions = append(g.Conditions, "the request has a key, which is optional")
	}
	if s.GateFirst && !s.Joined {
		g.Conditions = append(g.Conditions, "the handler has no effect before the gate")
	}
	if s.KeyTTL > 0 {
		g.Conditions = append(g.Conditions, fmt.Sprintf("repeats come within %s of the first request", s.KeyTTL))
	}
	return g
}

func (g *Guarantee) joined(s Setup) {
	g.Setup = s.Store.Name + ", joined to the transaction"
	// Record and effect are kept or lost together.
	g.Effects[InTransaction] = Promise{Once: All}
	// A handler that has had such an effect and then answers with a failure is rolled back, and the next request of
	// the client runs. So not even repeats are covered.
	const again = "a rollback does not undo it, and a repeat runs again: write it in the transaction, or use an engine with a lock"
	for _, e := range []Effect{Fenced, Elsewhere} {
		g.lacks(e, All, again)
	}
	if s.CallsOthers {
		g.Effects[Keyed] = Promise{Once: All}
	} else {
		g.lacks(Keyed, All, "set CallsOtherSystems in its policy, which fixes the downstream key before the transaction")
	}
}

func (g *Guarantee) locked(s Setup) {
	g.Setup = s.Lock.Name + ", " + s.Store.Name
	g.lacks(InTransaction, All, "it has no transaction: join the record to it (sqlstore.Join, pgxstore.Join)")
	both := s.Lock.Keeps & (s.Store.Keeps | s.Lock.Remembers)
	// An outage may take the lock from a handler in its middle, and a lost server the outcome with it, if no marker has that.
	doubt := both & (Outage | Crash | Pause | ServerLoss&^s.Lock.Remembers)
	if s.Resolves || s.RunsAgain {
		doubt = 0
	}
	for _, e := range []Effect{Fenced, Elsewhere} {
		once := both & possible[e]
		for i := range hazardNames {
			h := Hazards(1 << i)
			switch {
			case possible[e]&h == 0:
				g.lacks(e, h, "nothing but the resource can refuse a process that goes on: let it check the fence")
			case s.Lock.Keeps&h == 0:
				g.lacks(e, h, advice(&s.Lock, h))
			case both&h == 0:
				g.lacks(e, h, advice(&s.Store, h))
			}
		}
		if s.RunsAgain { // also after a handler that has had its effect and answers with 500, so repeats are not covered either
			once = 0
			g.lacks(e, All, "the policy runs again in doubt: use AskResolver or LeaveUnknown")
		}
		if s.FailsOpen { // lock or store is also away until another server has taken over
			const away = Repeat | Outage | ServerLoss | FailOver
			once &^= away
			g.lacks(e, away, "the policy fails open while lock or store is away")
		}
		g.Effects[e] = Promise{Once: once, Doubt: doubt & once}
	}
	g.Effects[Keyed] = Promise{Once: All, Doubt: doubt}
}

// lacks notes what would supply hazards.
func (g *Guarantee) lacks(e Effect, h Hazards, supplied string) {
	for i := range hazardNames {
		if one := Hazards(1 << i); h&one != 0 {
			g.missing[e][one] = supplied
		}
	}
}

func advice(p *Part, h Hazards) string {
	for at, text := range p.Supplies {
		if at&h != 0 {
			return text
		}
	}
	return p.Name + " does not give it"
}
