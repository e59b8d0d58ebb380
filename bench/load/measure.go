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
	mariadb             *testserver.MariaDB
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
	if s.Rounds < 1 || s.Delay < 0 {
		return nil, fmt.Errorf("%d rounds with a delay of %v", s.Rounds, s.Delay)
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
	for _, c := range m.running { // all at once, because a program with the race detector takes a second to end
		c.service.end()
	}
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
	config, err := m.servers(ctx, r)
	if err != nil {
		return err
	}
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
