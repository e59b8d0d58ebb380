package idem

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

// Guarantee says what a route with a policy gets from this engine. The error is that of [Policy.WithDefaults], or says that the
// engine is closed.
func (e *Engine) Guarantee(p Policy) (guarantee.Guarantee, error) {
	if e.work.closing.Err() != nil {
		return guarantee.Guarantee{}, fmt.Errorf("idem: guarantee: %w", errClosed)
	}
	filled, err := p.complete()
	if err != nil {
		return guarantee.Guarantee{}, err
	}
	return e.guarantee(filled), nil
}

func (e *Engine) guarantee(p *Policy) guarantee.Guarantee {
	s := e.mode.setup()
	s.Route, s.RunsAgain, s.Resolves = p.Name, p.InDoubt.again, p.InDoubt.resolver != nil
	s.FailsOpen, s.CallsOthers = p.FailOpen && !s.Joined, p.CallsOtherSystems
	return guarantee.Of(s)
}

// Fit is for adapters. It is [Policy.WithDefaults], and refuses a policy that requires more than the engine gives.
func (e *Engine) Fit(p Policy) (Policy, error) {
	p, err := p.WithDefaults()
	if err != nil {
		return p, err
	}
	if err := e.fits(&p); err != nil {
		return p, err
	}
	p.fits = e
	return p, nil
}

// fits returns nil if the engine gives what a policy requires.
func (e *Engine) fits(p *Policy) error {
	if p.Require == (guarantee.Need{}) || p.fits == e {
		return nil
	}
	g := e.guarantee(p)
	if err := g.Meets(p.Require); err != nil {
		return fmt.Errorf("idem: %w", err)
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
