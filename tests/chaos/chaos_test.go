package chaos

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// TestChaos runs the sample service on real servers, breaks all of them at random while
// clients pay, and then compares what the clients were told with the ledger.
//
//	configuration  which servers, and which faults they get         config_test.go
//	plan           which fault strikes what, when and for how long  plan_test.go
//	faults         one small type each                              faults_test.go, servers_test.go
//	load           clients that do not give up                      load_test.go
//	verdict        what has to hold in the end                      verdict_test.go
//
// The usual test run has the small configurations. `make chaos RUN=60s RUNS=1` has all of
// them, and prints lines "FIGURE name value". The log shows the plan of each run and its
// seed. IDEMKEEPER_SEED makes the same plan again, but the processes keep their own pace.
func TestChaos(t *testing.T) {
	size := chaosSize(t)
	seed := randomSeed(t)
	total := map[string]figures{}
	for n := range size.runs {
		for _, config := range configurations {
			if size.small && !config.small {
				continue
			}
			t.Run(config.name, func(t *testing.T) {
				c := newChaos(t, config, seed+uint64(n))
				c.lasts = size.lasts
				c.run()
				if !size.small {
					if total[config.name] == nil {
						total[config.name] = figures{}
					}
					total[config.name].add(c.figures)
				}
				_, _ = fmt.Fprintf(os.Stdout, "%s, run %d, seed %d: %v\n", config.name, n+1, c.seed, c.figures)
			})
		}
	}
	if size.small {
		return
	}
	for _, config := range slices.Sorted(maps.Keys(total)) {
		for _, name := range slices.Sorted(maps.Keys(total[config])) {
			_, _ = fmt.Fprintf(os.Stdout, "FIGURE chaos-%s-%s %d\n", config, name, total[config][name])
		}
	}
}

// run is one run of a configuration.
func (c *chaos) run() {
	c.config.servers(c)
	for i := range 3 {
		c.slots = append(c.slots, c.newSlot(i))
	}
	c.lane("everything", 30*time.Second, lasting(0, 0, allKilled{}))
	strikes := c.plan()
	load := c.startLoad()
	c.strikeAll(strikes)
	c.ended = time.Now()
	close(c.over)
	c.heal()
	load.wait()
	c.judge()
}

// chaos is a run.
type chaos struct {
	*kit.System // ZooKeeper, the token store and idemctl
	t           *testing.T
	config      configuration
	seed        uint64
	lasts       time.Duration // of the faults; healing and the verdict follow
	began       time.Time     // of the faults
	ended       time.Time     // to be read once over is closed

	// Made by the configuration.
	machine  *testserver.Machine
	books    string   // URL of the ledger
	pooled   string   // URL of the ledger for the instances, or "" for that of the ledger itself
	redisURL string   // of a token store that is reached without a proxy, or ""
	flags    []string // of every instance, beside the addresses
	mayLose  bool     // the token store may lose records, and keys are marked
	unsolved bool     // no resolver: outcomes may stay unknown
	lanes    []lane

	slots []*slot
	over  chan struct{} // closed after the last fault

	mu      sync.Mutex
	stories []*story // of all keys
	diary   []entry  // what was broken, and when
	wrong   []string // answers that no client may get
	late    []string // keys whose clients gave up
	domains []string // lock domains from before the ensemble came back with older data
	figures figures
}

func newChaos(t *testing.T, config configuration, seed uint64) *chaos {
	t.Helper()
	return &chaos{t: t, config: config, seed: seed, over: make(chan struct{}), figures: figures{},
		machine: testserver.NewMachine(t), System: &kit.System{T: t, Session: 30 * time.Second}}
}

// heal makes sure that all instances serve. Each fault has undone itself.
func (c *chaos) heal() {
	for _, s := range c.slots {
		for _, l := range s.links {
			l.restore()
		}
	}
	for _, s := range c.slots {
		in := s.in.Load()
		kit.Eventually(c.t, "readiness of "+s.name, func() error {
			if a := in.HTTPClient().Readiness(); a.Status != 200 {
				return fmt.Errorf("%w: %v; its log ends with\n%s", kit.ErrNotYet, a, in.Stderr.Tail(8))
			}
			return nil
		})
	}
}

// size is how much is run.
type size struct {
	runs  int
	lasts time.Duration
	small bool
}

// chaosSize reads IDEMKEEPER_CHAOS_RUNS and IDEMKEEPER_CHAOS_RUN, which `make chaos` sets.
func chaosSize(t *testing.T) size {
	t.Helper()
	text := os.Getenv("IDEMKEEPER_CHAOS_RUN")
	if text == "" {
		return size{runs: 1, lasts: 6 * time.Second, small: true}
	}
	lasts, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("IDEMKEEPER_CHAOS_RUN: %v", err)
	}
	runs, err := strconv.Atoi(cmp.Or(os.Getenv("IDEMKEEPER_CHAOS_RUNS"), "1"))
	if err != nil {
		t.Fatalf("IDEMKEEPER_CHAOS_RUNS: %v", err)
	}
	return size{runs: runs, lasts: lasts}
}

// randomSeed is random, or the value of IDEMKEEPER_SEED. The log shows it.
func randomSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if v := os.Getenv("IDEMKEEPER_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatalf("IDEMKEEPER_SEED: %v", err)
		}
	}
	t.Logf("IDEMKEEPER_SEED=%d", seed)
	return seed
}
