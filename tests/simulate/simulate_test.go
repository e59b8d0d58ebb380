package simulate

import (
	"flag"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/cryptotest"
	"time"
)

// The seeds of a usual test run take a few seconds. `make simulate` runs more.
var (
	seeds = flag.Int("seeds", 50, "how many seeds to run")
	from  = flag.Uint64("from", 1, "the first seed")
	only  = flag.String("fault", "", "run only the seeds whose plan has this fault, such as store-full")
	most  = flag.Int("failures", 1, "stop after so many seeds that failed")
	tries = flag.Int("tries", 10, "how often a failing plan runs again, and each smaller plan at the most; 0 leaves it as it is")
)

// TestSimulate runs the plans of some seeds, one after the other.
func TestSimulate(t *testing.T) {
	// One processor leaves the scheduler fewer choices.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	began, ran, failed := time.Now(), 0, 0
	fenced, lossy, combined := 0, 0, 0 // plans whose ledger checks fences, whose store loses records, and with combined calls
	with := make([]int, kinds)
	for seed := *from; seed < *from+uint64(*seeds) && failed < *most; seed++ {
		plan := NewPlan(seed)
		if *only != "" && !plan.has(kindNamed(*only)) {
			continue
		}
		ran++
		if plan.Fenced {
			fenced++
		}
		if plan.has(StoreFallsBack, StoreLosesAll) {
			lossy++
		}
		if plan.Combined {
			combined++
		}
		for k := range kinds {
			if plan.has(k) {
				with[k]++
			}
		}
		if failures := run(t, plan); len(failures) > 0 {
			failed++
			t.Errorf("%v\n  %s", plan.String(), strings.Join(failures, "\n  "))
			shrink(t, plan)
		}
	}
	t.Logf("FIGURE simulate %d seeds from %d in %v, %d failed; %d have the fence check, %d lose records, %d combine lock and record",
		ran, *from, time.Since(began).Round(time.Millisecond), failed, fenced, lossy, combined)
	for k, n := range with {
		t.Logf("FIGURE simulate-%s %d", nameOf(FaultKind(k)), n)
	}
}

// nameOf is the name of a fault in a flag and in a figure.
func nameOf(k FaultKind) string { return strings.ReplaceAll(kindNames[k], " ", "-") }

func kindNamed(name string) FaultKind {
	for k := range kinds {
		if nameOf(k) == name {
			return k
		}
	}
	return kinds
}

// TestALedgerWithoutFencesMayPayTwice: a holder that is paused between its last check and
// its payment pays after its successor. The documents promise no more, and the simulation
// has to find it.
func TestALedgerWithoutFencesMayPayTwice(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for seed := range uint64(200) {
		plan := NewPlan(seed)
		plan.Fenced, plan.Distant, plan.Keys, plan.Storm = false, true, 1, 6*plan.Session
		plan.Faults = []Fault{{Kind: PauseProcess, Step: 1, AtLedger: true, For: 3 * plan.Session}}
		if slices.ContainsFunc(run(t, plan), func(f string) bool { return strings.Contains(f, "was paid 2 times") }) {
			return
		}
	}
	t.Error("no run paid twice")
}

func TestShrink(t *testing.T) {
	plan := NewPlan(1)
	plan.Faults = []Fault{{Kind: CrashProcess, Step: 1}, {Kind: StoreDown, At: 1}, {Kind: PauseProcess, Step: 2}, {Kind: Hang, At: 2}}
	needs := func(p Plan, k FaultKind) bool {
		return slices.ContainsFunc(p.Faults, func(f Fault) bool { return f.Kind == k })
	}
	smaller := Shrink(plan, 1, func(p Plan) bool { return needs(p, StoreDown) && needs(p, Hang) })
	if len(smaller.Faults) != 2 || !needs(smaller, StoreDown) || !needs(smaller, Hang) || smaller.Clients != 1 || smaller.Fates.Lost != 0 {
		t.Errorf("Shrink() = %v, want only the two faults that matter", smaller.String())
	}
}

// run runs a plan, with the random numbers of crypto/rand from its seed.
func run(t *testing.T, plan Plan) []string {
	cryptotest.SetGlobalRandom(t, plan.Seed)
	return Run(t, plan)
}

// shrink reports how often a failure comes again, and a smaller plan that fails.
func shrink(t *testing.T, plan Plan) {
	if *tries == 0 {
		return
	}
	again := 0
	for range *tries {
		if len(run(t, plan)) > 0 {
			again++
		}
	}
	t.Logf("seed %d failed %d times in %d more runs", plan.Seed, again, *tries)
	if again == 0 {
		return
	}
	smaller := Shrink(plan, *tries, func(p Plan) bool { return len(run(t, p)) > 0 })
	t.Logf("a smaller plan that fails: %v\n  %s", smaller.String(), strings.Join(run(t, smaller), "\n  "))
}
