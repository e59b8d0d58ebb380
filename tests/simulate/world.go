package simulate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simstore"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simzk"
)

// The hosts of the network beside those of the processes.
const (
	servers    = 3
	storeHost  = "store"
	ledgerHost = "ledger"
)

// containers is how often the ensemble removes empty containers. The usual minute would
// only make runs longer.
const containers = 5 * time.Second

func serverNames() (names []string) {
	for i := range servers {
		names = append(names, fmt.Sprintf("zk%d:2181", i))
	}
	return names
}

// world is one run.
type world struct {
	plan   Plan
	net    *simnet.Net
	zk     *simzk.Ensemble
	store  *simstore.Server
	ledger *ledger
	leases *leases
	judge  *judge
	begun  attempts

	elements elements
	sum      sum

	start time.Time
	wg    sync.WaitGroup

	mu        sync.Mutex
	rnd       *rand.Rand // for choices that no other stream makes
	processes []*process
	lives     int
	callers   []*simnet.Caller
	steps     []int     // of each process, over all its lives
	payments  []int     // those steps that are at the ledger
	calm      bool      // no more faults
	quiet     time.Time // when the last fault is over
	failures  []string
	stopping  chan struct{}
}

// Run runs a plan, and returns what it broke. It has to be called outside of a bubble.
func Run(t *testing.T, plan Plan) (failures []string) {
	synctest.Test(t, func(*testing.T) { failures = newWorld(plan).run() })
	return failures
}

func newWorld(plan Plan) *world {
	w := &world{
		plan: plan, net: simnet.New(plan.Seed, plan.Network), store: simstore.New(), ledger: newLedger(plan.Fenced), start: time.Now(),
		rnd: simnet.Random(plan.Seed, "world"), processes: make([]*process, plan.Processes), steps: make([]int, plan.Processes), payments: make([]int, plan.Processes),
		stopping: make(chan struct{}),
	}
	w.elements = elements{offered: make(map[string]bool), acked: make(map[string]int), maybe: make(map[string]bool)}
	w.begun.nonces = make(map[driver.Nonce]time.Time)
	w.judge = newJudge(w)
	w.store.Changed = w.judge.changed
	w.store.Late = w.judge.late
	w.leases = &leases{w: w, held: make(map[string][]*belief), fence: make(map[string]driver.Fence), excused: make(map[*process]time.Time), forgotten: make(map[string]time.Time)}
	w.zk = simzk.New(plan.Seed, w.net, simzk.Config{
		Servers: serverNames(), Tick: plan.Tick, Speed: plan.Speeds[0], Lag: plan.Lag, SyncLimit: 5 * plan.Tick, Election: 3 * plan.Tick,
		Containers: containers,
	})
	return w
}

// failf notes what must not happen.
func (w *world) failf(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failures = append(w.failures, fmt.Sprintf("%v: ", time.Since(w.start))+fmt.Sprintf(format, args...))
}

// coin is a choice of no importance.
func (w *world) coin() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(2) == 0
}

// process is the present life of a process.
func (w *world) process(index int) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.processes[index]
}

// run runs the plan.
func (w *world) run() []string {
	for key := range w.plan.Keys {
		if routeOf(key) == "token" {
			_, _ = w.store.Client(func(_ context.Context, serve func()) error { serve(); return nil }).Issue(context.Background(), idOf(key), time.Hour)
		}
	}
	for i := range w.plan.Processes {
		w.mu.Lock()
		w.launch(i)
		w.mu.Unlock()
	}
	var clients sync.WaitGroup
	for c := range w.plan.Clients {
		clients.Go(func() { w.load(c) })
	}
	w.storm()
	clients.Wait()
	w.settle()
	close(w.stopping)
	w.wg.Wait()
	for _, c := range w.callers {
		c.Wait()
	}
	w.leftovers()
	w.zk.Stop()
	time.Sleep(time.Second)
	synctest.Wait()
	if left := goroutines(); left != "" {
		w.failf("%s", left)
	}
	return w.failures
}
