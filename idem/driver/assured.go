package driver

import "github.com/idemkeeper/idemkeeper/idem/guarantee"

// Assured is a [Locker] or a [Store] that says what it keeps through which hazards. One that does not say so counts as
// one that keeps nothing through a crash.
type Assured interface {
	Assurance() guarantee.Part
}
