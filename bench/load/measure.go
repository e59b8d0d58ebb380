package load

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Settings choose what is measured, and for how long.
type Settings struct {
	Connections []int         `json:"connections"`
	Delay       time.Duration `json:"delay_ns"` // of the network, in each direction. 0 for no proxy
	Cases       []string      `json:"cases"`    // none is all
	Ensemble    int           `json:"ensemble"` // its members. Below 2 the cases of the ensemble are left out
	Rounds      int           `json:"rounds"`
	Warmup      time.Duration `json:"warmup_ns"`
	Window      time.Duration `json:"window_ns"`
	Keys        int           `json:"keys"`    // that are repeated
	Records     int           `json:"records"` // in the full store. 0 leaves its case out
	Profile     string        `json:"-"`       // file for the processor profile of the one case, or ""
}

// Result is everything that was measured.
type Result struct {
	Machine  string       `json:"machine"`
	Settings Settings     `json:"settings"`
	Cases    []CaseResult `json:"cases"`
	Records  *Records     `json:"records,omitempty"`
	Goals    []GoalResult `json:"goals"`
}

// CaseResult has the windows of a case at one number of connections.
type CaseResult struct {
	Case        string   `json:"case"`
	Connections int      `json:"connections"`
	Trips       int      `json:"trips"` // on the critical path, with a delay only. See trips
	Median      Window   `json:"median"`
	Rounds      []Window `json:"rounds"`
}

// find returns nil if that was not measured.
func (r *Result) find(name string, connections int) *CaseResult {
	for i := range r.Cases {
		if c := &r.Cases[i]; c.Case == name && c.Connections == connections {
			return c
		}
	}
	return nil
}

// measurement is a run under way.
type measurement struct {
	Settings
	tb        testing.TB // owns the servers
	log       io.Writer
	generator *process
	proxy     *proxied // nil without a delay
	running   []*runningCase
	result    *Result

	redis, fullRedis    *redisServer
	zooKeeper, ensemble *zooKeeperServers
	postgres            *testserver.Postgres
}

// runningCase is a case with its service.
type runningCase struct {
	testCase
	service *process
	ready   serviceReady
	redis   *redisServer
	pids    processes
	trips   int
	asked   string // a ZooKeeper server that tells how many transactions there were, or ""
	prefix  string // of its keys in Redis
	keys    string // prefix of the repeated keys
}

// Measure starts the servers, which the clean-up of tb ends, and measures all cases. It
// writes its progress to log. It is for one goroutine.
func Measure(ctx context.Context, tb testing.TB, s Settings, log io.Writer) (_ *Result, err error) {
	tb.Helper()
	selected, err := selectCases(s)
	if err != nil {
		return nil, err
	}
	if s.Rounds < 1 {
		return nil, fmt.Errorf("%d rounds", s.Rounds)
	}
	if s.Profile != "" && len(selected) != 1 {
		return nil, fmt.Errorf("a profile is of one case, and %d cases are selected", len(selected))
	}
	m := &measurement{Settings: s, tb: tb, log: log, result: &Result{
		Machine:  fmt.Sprintf("%d processors, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()),
		Settings: s,
	}}
	defer func() {
		failed := err != nil
		if err = errors.Join(err, m.close()); failed {
			m.tellComplaints()
		}
	}()
	if m.generator, err = startProcess(ctx, roleGenerator); err != nil {
		return nil, err
	}
	if s.Delay > 0 {
		if m.proxy, err = startProxy(ctx, s.Delay); err != nil {
			return nil, err
		}
	}
	for _, c := range selected {
		if err := m.start(ctx, c); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	if err := m.rounds(ctx); err != nil {
		return nil, err
	}
	m.result.Goals = judge(m.result)
	return m.result, nil
}

// tellComplaints logs what the services have written to their standard errors. They have ended.
func (m *measurement) tellComplaints() {
	for _, c := range m.running {
		if c.service.errors.Len() > 0 {
			fmt.Fprintf(m.log, "%s wrote:\n%s", c.name, &c.service.errors)
		}
	}
}

func (m *measurement) close() error {
	var all error
	for _, c := range m.running {
		if err := c.service.close(); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", c.name, err))
		}
	}
	if m.generator != nil {
		all = errors.Join(all, m.generator.close())
	}
	if m.proxy != nil {
		all = errors.Join(all, m.proxy.process.close())
	}
	return all
}

// start starts the service of a case, and the servers that it is the first to need.
func (m *measurement) start(ctx context.Context, c testCase) error {
	// As long as the default prefix of the token store, because keys count among a record's bytes.
	prefix := fmt.Sprintf("ld%02d", len(m.running))
	r := &runningCase{testCase: c, prefix: prefix, keys: rand.Text()[:16]}
	config := serviceConfig{Case: c.name, Prefix: r.prefix, Profile: m.Profile}
	if c.redis {
		var err error
		if r.redis, err = m.redisFor(c); err != nil {
			return err
		}
		if config.Redis, err = m.proxy.url(r.redis.URL()); err != nil {
			return err
		}
		r.pids.Redis = []int{r.redis.PID()}
	}
	if c.postgres {
		var err error
		if config.Postgres, err = m.databaseFor(ctx, c); err != nil {
			return err
		}
	}
	if c.zooKeeper {
		servers := m.zooKeeperFor(c)
		for _, host := range servers.hosts {
			address, err := m.proxy.address(host)
			if err != nil {
				return err
			}
			config.ZooKeeper = append(config.ZooKeeper, address)
		}
		r.pids.ZooKeeper, r.asked = servers.pids, servers.hosts[0]
	}
	var err error
	if r.service, err = startProcess(ctx, roleService); err != nil {
		return err
	}
	m.running = append(m.running, r)
	r.pids.Service = []int{r.service.pid()}
	if m.proxy != nil {
		r.pids.Proxy = []int{m.proxy.process.pid()}
	}
	if err := r.service.ask(config, &r.ready); err != nil {
		return err
	}
	if r.ready.Error != "" {
		return errors.New(r.ready.Error)
	}
	if c.keys == repeated || c.full {
		if _, err := m.do(r, job{Keys: repeated, First: true, Connections: stormClients}); err != nil {
			return err
		}
	}
	if m.proxy != nil {
		if r.trips, err = m.countTrips(ctx, r); err != nil {
			return err
		}
	}
	if c.full {
		return m.fill(ctx, r)
	}
	return nil
}

func (m *measurement) fill(ctx context.Context, r *runningCase) error {
	begin := time.Now()
	records, err := fill(ctx, r.redis.client, r.prefix, m.Records)
	if err != nil {
		return err
	}
	fmt.Fprintf(m.log, "wrote %d records in %v\n", m.Records, time.Since(begin).Round(time.Second))
	m.result.Records = &records
	return nil
}

// rounds measures every case in each round. The first round does not count.
func (m *measurement) rounds(ctx context.Context) error {
	for round := range m.Rounds + 1 {
		begin := time.Now()
		if round == 1 && m.Profile != "" {
			if err := m.running[0].service.send.Encode(startProfile); err != nil {
				return err
			}
		}
		var all []int
		for _, r := range m.running {
			all = append(all, r.connections...)
		}
		slices.Sort(all)
		for _, connections := range slices.Compact(all) {
			if err := m.turns(ctx, round, connections); err != nil {
				return err
			}
		}
		fmt.Fprintf(m.log, "round %d of %d took %v\n", round, m.Rounds, time.Since(begin).Round(time.Second))
	}
	for i := range m.result.Cases {
		c := &m.result.Cases[i]
		c.Median = medianOf(c.Rounds)
	}
	return nil
}

// turns measures the cases with so many connections. Each round begins with another case.
func (m *measurement) turns(ctx context.Context, round, connections int) error {
	for i := range m.running {
		r := m.running[(i+round)%len(m.running)]
		if !slices.Contains(r.connections, connections) {
			continue
		}
		result, err := m.do(r, job{Keys: r.testCase.keys, Connections: connections, Warmup: m.Warmup, Window: m.Window})
		if err != nil {
			return fmt.Errorf("%s with %d connections: %w", r.name, connections, err)
		}
		if r.redis != nil && !r.full && r.testCase.keys != repeated {
			if err := forget(ctx, r.redis.client, r.prefix); err != nil {
				return err
			}
		}
		if round > 0 {
			m.add(r, connections, result.Window)
		}
	}
	return nil
}

func (m *measurement) do(r *runningCase, j job) (jobResult, error) {
	j.Service, j.Processes, j.ZooKeeper, j.Prefix, j.Number = r.ready, r.pids, r.asked, r.keys, m.Keys
	var result jobResult
	if err := m.generator.ask(j, &result); err != nil {
		return jobResult{}, fmt.Errorf("generator: %w", err)
	}
	if result.Error != "" {
		return jobResult{}, errors.New(result.Error)
	}
	return result, nil
}

func (m *measurement) add(r *runningCase, connections int, w Window) {
	c := m.result.find(r.name, connections)
	if c == nil {
		m.result.Cases = append(m.result.Cases, CaseResult{Case: r.name, Connections: connections, Trips: r.trips})
		c = &m.result.Cases[len(m.result.Cases)-1]
	}
	c.Rounds = append(c.Rounds, w)
}

// medianOf takes the median of each figure.
func medianOf(rounds []Window) (w Window) {
	for i, figure := range w.figures() {
		var values []float64
		for _, r := range rounds {
			values = append(values, *r.figures()[i])
		}
		*figure = median(values)
	}
	return w
}

// median needs at least one value.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	half := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[half]
	}
	return (sorted[half-1] + sorted[half]) / 2
}
