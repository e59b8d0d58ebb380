// Package adapter is what the adapters of all transports share: how options are applied,
// which fields of an answer are replayed, and which errors a client may see.
package adapter

import (
	"errors"
	"fmt"
	"slices"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Apply applies options in their order. A nil option is ignored.
func Apply[T any, O ~func(*T)](to *T, opts []O) {
	for _, opt := range opts {
		if opt != nil {
			opt(to)
		}
	}
}

// Must panics if the wiring is wrong. Otherwise it returns v.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// RefusalOf returns the refusal in an error. A client does not see any other error, so
// the refusal is then internal.
func RefusalOf(err error) *idem.Refusal {
	if r, ok := errors.AsType[*idem.Refusal](err); ok {
		return r
	}
	return idem.NewRefusal(idem.CodeInternal, err)
}

var errRelayed = errors.New("the handler answered with a refusal")

// Relayed returns the error of a handler that answered with the refusal of a service it
// called, or of middleware inside. Such a refusal says nothing about the outcome of this
// handler's operation. The outcome is in doubt, and the answer is not stored. An empty
// code stands for an answer that is no refusal, and Relayed returns nil.
func Relayed[C ~string](code C) error {
	if code == "" {
		return nil
	}
	return fmt.Errorf("%w: %s", errRelayed, code)
}

// IsRelayed reports whether the engine has returned an error of [Relayed]. A refusal
// around it is the engine's own.
func IsRelayed(err error) bool {
	_, refused := errors.AsType[*idem.Refusal](err)
	return !refused && errors.Is(err, errRelayed)
}

// StatusPolicies returns the policies for [idem.Engine.Status], where the first one for a
// route counts: those that are listed, the last one first, and then own.
func StatusPolicies(listed []idem.Policy, own ...*idem.Policy) ([]*idem.Policy, error) {
	var policies []*idem.Policy
	for _, p := range slices.Backward(listed) {
		if p.Name == "" {
			return nil, errors.New("a status policy without a route")
		}
		policies = append(policies, &p)
	}
	return append(policies, own...), nil
}
