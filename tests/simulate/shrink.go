package simulate

import (
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
)

// Shrink returns a smaller plan that fails as well. It leaves out one fault after the
// other, then clients, keys and processes, and the faults of the network, as long as one of tries
// runs still fails. fails runs a plan once.
func Shrink(plan Plan, tries int, fails func(Plan) bool) Plan {
	still := func(smaller Plan) bool {
		for range tries {
			if fails(smaller) {
				plan = smaller
				return true
			}
		}
		return false
	}
	for again := true; again; {
		again = false
		for i := range slices.Backward(plan.Faults) {
			smaller := plan
			smaller.Faults = slices.Delete(slices.Clone(plan.Faults), i, i+1)
			again = still(smaller) || again
		}
	}
	for _, change := range []func(*Plan){
		func(p *Plan) { p.Fates = simnet.Fates{} },
		func(p *Plan) { p.Network.SlowEvery, p.Network.Slowest = 0, 0 },
		func(p *Plan) { p.Network.Most = p.Network.Least + time.Microsecond },
		func(p *Plan) { p.Lag = 0 },
		func(p *Plan) {
			for i := range p.Speeds {
				p.Speeds[i] = 1
			}
		},
		func(p *Plan) { p.Clients = min(p.Clients, 2) },
		func(p *Plan) { p.Clients = 1 },
		func(p *Plan) { p.Keys = 1 },
	} {
		smaller := plan
		smaller.Speeds = slices.Clone(plan.Speeds)
		change(&smaller)
		if smaller.String() != plan.String() {
			still(smaller)
		}
	}
	return plan
}
