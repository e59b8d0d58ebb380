package idem

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

// errNoChoice refuses a policy that does not say what happens to an outcome in doubt.
var errNoChoice = errors.New("does not choose InDoubt, which says what follows a crash, a time-out or a 5xx of the handler, when nobody knows whether the payment happened: " +
	"idem.AskResolver(f) if your code can look the payment up, idem.RunAgain() if a second run does no harm because the bank keeps idem.DownstreamKey, " +
	"idem.LeaveUnknown() if a person has to decide. Until then clients get the 5xx or 409 outcome-unknown. Neither means that nothing was paid, so they repeat with the same key")

// Guarantee says what a route with a policy gets from this engine. The error says what is wrong with the policy, or that the
// engine is closed.
func (e *Engine) Guarantee(p Policy) (guarantee.Guarantee, error) {
	if e.work.closing.Err() != nil {
		return guarantee.Guarantee{}, fmt.Errorf("idem: guarantee: %w", errClosed)
	}
	filled, err := p.complete()
	if err == nil {
		err = e.chosen(filled)
	}
	if err != nil {
		return guarantee.Guarantee{}, err
	}
	return e.guarantee(filled), nil
}

// Guarantees returns what each route that adapters have set up with this engine gets, in the order of their routes. Some frameworks
// tell the adapter no route before its first request. Until then Route is the line of the program that has set it up.
func (e *Engine) Guarantees() []guarantee.Guarantee {
	all := e.routes.all()
	slices.SortFunc(all, func(a, b guarantee.Guarantee) int { return strings.Compare(a.Route, b.Route) })
	return all
}

func (e *Engine) guarantee(p *Policy) guarantee.Guarantee {
	s := e.mode.setup()
	s.Route, s.RunsAgain, s.Resolves = p.Name, p.InDoubt.again, p.InDoubt.resolver != nil
	s.FailsOpen, s.CallsOthers = p.FailOpen && !s.Joined, p.CallsOtherSystems
	s.GateFirst, s.OptionalKey, s.KeyTTL = p.GateFirst, p.optionalKey, p.KeyTTL
	return guarantee.Of(s)
}

// Fit is for adapters, when they set a route up. It is [Policy.WithDefaults], and refuses a policy that the engine does not fit:
// it requires more than the engine gives, or does not choose InDoubt. The guarantee of the route goes to the log.
func (e *Engine) Fit(p Policy) (Policy, error) {
	p, err := p.WithDefaults()
	if err != nil {
		return p, err
	}
	if err := e.fits(&p); err != nil {
		return p, err
	}
	w, first, err := e.routes.add(e.core, &p, e.guarantee(&p))
	if err != nil {
		return p, err
	}
	if first {
		e.log().Info("idemkeeper: guarantee", "route", w.guarantee.Route, "setup", w.guarantee.Setup, "gets", w.guarantee.Line())
	}
	p.route = w
	return p, nil
}

// fits returns nil if the policy chooses InDoubt and the engine gives what it requires.
func (e *Engine) fits(p *Policy) error {
	if err := e.chosen(p); err != nil {
		return err
	}
	if p.Require == (guarantee.Need{}) || p.route.of(e.core) {
		return nil
	}
	g := e.guarantee(p)
	if g.Route == "" {
		g.Route = wiredAt()
	}
	if err := g.Meets(p.Require); err != nil {
		return fmt.Errorf("idem: %w", err)
	}
	return nil
}

// chosen returns nil if the policy chooses InDoubt, or need not.
func (e *Engine) chosen(p *Policy) error {
	if !p.InDoubt.chosen && !e.mode.transactional() {
		return fmt.Errorf("idem: policy %q %w", p.label(), errNoChoice)
	}
	return nil
}

// assurance is what a locker or a store says of itself.
func assurance(part any) guarantee.Part {
	if a, ok := part.(driver.Assured); ok {
		return a.Assurance()
	}
	return guarantee.Part{Name: fmt.Sprintf("%T", part), Keeps: guarantee.Repeat | guarantee.Outage,
		Supplies: map[guarantee.Hazards]string{guarantee.All: fmt.Sprintf("%T does not say what it keeps: see driver.Assured", part)}}
}

func (m *lockMode) setup() guarantee.Setup {
	return guarantee.Setup{Lock: assurance(m.locker), Store: assurance(m.store)}
}

func (m *joinedMode) setup() guarantee.Setup {
	return guarantee.Setup{Joined: true, Store: assurance(m.store)}
}
