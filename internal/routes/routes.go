// Package routes finds the policy of a route in a list of policies. Everything that is about several
// routes takes such a list, where the Name of each policy is its route.
package routes

import (
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Policies is such a list. The zero value has no policy. It is safe for concurrent use.
type Policies struct {
	named  map[string]idem.Policy
	others *idem.Policy
}

// New checks a list. A policy without a Name stands for all other routes. The policies need no Scope,
// because records tell the scope of their keys.
func New(list []idem.Policy) (*Policies, error) {
	p := &Policies{named: make(map[string]idem.Policy)}
	for _, policy := range list {
		policy.AllowGlobalKeys = true
		if _, err := policy.WithDefaults(); err != nil {
			return nil, err
		}
		_, twice := p.named[policy.Name]
		switch {
		case twice:
			return nil, fmt.Errorf("two policies for the route %q", policy.Name)
		case policy.Name == "" && p.others != nil:
			return nil, errors.New("two policies for all other routes")
		case policy.Name == "":
			p.others = &policy
		default:
			p.named[policy.Name] = policy
		}
	}
	return p, nil
}

// Of returns the policy of a route, or false if the list has none.
func (p *Policies) Of(route string) (idem.Policy, bool) {
	if policy, ok := p.named[route]; ok {
		return policy, true
	}
	if p.others != nil {
		return *p.others, true
	}
	return idem.Policy{}, false
}
