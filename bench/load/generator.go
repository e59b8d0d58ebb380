package load

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"
)

// job is one window of load, or the first requests of the keys that will be repeated, or a single request.
type job struct {
	Service     serviceReady
	Connections int
	Keys        keyPlan
	Prefix      string // of the repeated keys, 16 characters
	Number      int    // of the repeated keys
	First       bool   // each of the repeated keys once, and no window
	Single      bool   // one request, and no window
	Warmup      time.Duration
	Window      time.Duration
	Processes   processes
	ZooKeeper   string // a server to ask how many transactions there were, or ""
}

// processes are those of a case, by their IDs.
type processes struct {
	Service, ZooKeeper, Redis, Proxy []int
}

// jobResult is the generator's answer to a job.
type jobResult struct {
	Window   Window
	Answered time.Time // when the last request was
	Error    string
}

// Window is what was measured in one window, or the medians of several.
type Window struct {
	Rate        float64 `json:"requests_per_second"`
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	Service     float64 `json:"service_cpu_us"` // processor time per request
	ZooKeeper   float64 `json:"zookeeper_cpu_us"`
	Redis       float64 `json:"redis_cpu_us"`
	Processor   float64 `json:"cpu_us"`      // of the three together
	Allocations float64 `json:"allocations"` // of the service, per request
	Bytes       float64 `json:"allocated_bytes"`
	Writes      float64 `json:"zookeeper_transactions"`  // of ZooKeeper, per request
	LocksPerKey float64 `json:"locks_per_key,omitempty"` // in a storm
	Busy        float64 `json:"busy"`                    // share of the processors that everything together used
	Others      float64 `json:"others"`                  // share that all other processes used
}

// figures lists the fields, for medians.
func (w *Window) figures() []*float64 {
	return []*float64{
		&w.Rate, &w.P50, &w.P99, &w.Service, &w.ZooKeeper, &w.Redis, &w.Processor,
		&w.Allocations, &w.Bytes, &w.Writes, &w.LocksPerKey, &w.Busy, &w.Others,
	}
}

// generate does one job after the other until in ends.
func generate(ctx context.Context, in *json.Decoder, out *json.Encoder) error {
	for {
		var j job
		if err := in.Decode(&j); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		l := newLoad(j)
		window, err := l.run(ctx)
		result := jobResult{Window: window, Answered: l.answered}
		if err != nil {
			result.Error = err.Error()
		}
		if err := out.Encode(result); err != nil {
			return err
		}
	}
}

// load is a job under way.
type load struct {
	job
	client    *fasthttp.HostClient
	prefix    string
	sent      atomic.Int64 // requests that were answered
	taken     atomic.Int64 // keys, except in a storm
	measuring atomic.Bool
	stop      chan struct{}
	storms    chan int64 // the numbers of keys, each as often as there are connections
	stormed   sync.WaitGroup
	keys      atomic.Int64 // of a storm

	mu        sync.Mutex
	latencies []time.Duration // within the window
	answered  time.Time
}

func newLoad(j job) *load {
	l := &load{
		job: j, prefix: j.Prefix, stop: make(chan struct{}), storms: make(chan int64),
		client: &fasthttp.HostClient{
			Addr: j.Service.Address, MaxConns: j.Connections, MaxIdemponentCallAttempts: 1,
			ReadTimeout: time.Minute, NoDefaultUserAgentHeader: true,
		},
	}
	if j.Keys != repeated {
		l.prefix = rand.Text()[:16]
	}
	return l
}

func (l *load) run(ctx context.Context) (Window, error) {
	defer l.client.CloseIdleConnections()
	before, err := l.figures(ctx)
	if err != nil {
		return Window{}, err
	}
	group, ctx := errgroup.WithContext(ctx)
	for range l.Connections {
		group.Go(func() error { return l.connection(ctx) })
	}
	if l.Keys == storm {
		group.Go(func() error { return l.storm(ctx) })
	}
	var w Window
	if !l.First && !l.Single {
		group.Go(func() error {
			defer close(l.stop)
			var err error
			w, err = l.window(ctx)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return Window{}, err
	}
	after, err := l.figures(context.WithoutCancel(ctx))
	if err != nil {
		return Window{}, err
	}
	slices.Sort(l.latencies)
	w.P50, w.P99 = percentile(l.latencies, 50), percentile(l.latencies, 99)
	if l.Keys == storm {
		w.LocksPerKey = float64(after.Locks-before.Locks) / float64(l.keys.Load())
	}
	return w, l.checkRuns(after.Runs - before.Runs)
}

// checkRuns compares how often the handler ran with the keys that were sent.
func (l *load) checkRuns(runs int64) error {
	want := l.sent.Load()
	switch {
	case l.Keys == storm:
		want = l.keys.Load()
	case l.Keys == repeated && !l.First:
		want = 0
	}
	if runs != want {
		return fmt.Errorf("the handler ran %d times, want %d", runs, want)
	}
	return nil
}

// leastRequests make a window longer on a machine that is too slow for them.
const leastRequests = 20

// window waits for the warm-up, and measures.
func (l *load) window(ctx context.Context) (Window, error) {
	if err := wait(ctx, l.Warmup); err != nil {
		return Window{}, err
	}
	begin, err := l.reading(ctx)
	if err != nil {
		return Window{}, err
	}
	l.measuring.Store(true)
	if err := wait(ctx, l.Window); err != nil {
		return Window{}, err
	}
	for l.sent.Load() < begin.sent+leastRequests {
		if err := wait(ctx, time.Millisecond); err != nil {
			return Window{}, err
		}
	}
	l.measuring.Store(false)
	end, err := l.reading(ctx)
	if err != nil {
		return Window{}, err
	}
	return end.since(begin), nil
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
