package bench

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// The benchmarks' ZooKeeper is one as it would serve.
func TestMain(m *testing.M) {
	testserver.ShareZooKeeperWith(testserver.AsInProduction())
	os.Exit(testserver.Main(m))
}

// The request and the response that every case exchanges, as JSON where the
// transport is HTTP.
const (
	order   = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"coffee"}`
	receipt = `{"id":"p1","from":"alice","to":"bob","amount":1250,"currency":"USD","note":"coffee","status":"succeeded"}`
)

// callers are the numbers of concurrent callers at which servers are measured:
// one shows the latency, many show what the service can carry.
var callers = []int{1, 64}

// keys makes keys that nobody has used before, by any run of the benchmarks.
// They are 36 characters long, since Fiber takes no others.
type keys struct {
	prefix string
	n      atomic.Int64
}

func newKeys() *keys { return &keys{prefix: rand.Text()[:16]} }

func (k *keys) next() string { return fmt.Sprintf("%s%020d", k.prefix, k.n.Add(1)) }

// same is the key of those who replay: next, but always the first.
func (k *keys) same() string { return fmt.Sprintf("%s%020d", k.prefix, 0) }

// runs counts how often handlers ran. A case that did not execute what it says
// it measures has measured something else.
type runs struct{ atomic.Int64 }

func (r *runs) want(b *testing.B, n int) {
	b.Helper()
	if got := int(r.Load()); got != n {
		b.Fatalf("the handler ran %d times, want %d", got, n)
	}
}

// policy is that of a route with client keys and every default. Scopes are left
// out, because no peer has them.
var policy = idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}

// memoryEngine is an engine for a single instance.
func memoryEngine(b *testing.B) *idem.Engine {
	b.Helper()
	return newEngine(b, memorylock.New(), memorystore.New())
}

func newEngine(b *testing.B, locker driver.Locker, store driver.Store) *idem.Engine {
	b.Helper()
	engine, err := idem.New(locker, store)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

// alone measures op, one call after the other, and returns how often it ran.
//
// It is for what adds some microseconds to a call that takes more, so it looks at
// the processor time that the process uses, as cpu-ns/op, and lets Go use one
// processor: client, server and garbage collection then take turns, nothing hides
// on an idle core, and a machine that is busy with something else changes little.
// On an idle machine it is the same as the time that passes.
func alone(b *testing.B, op func()) (calls int) {
	b.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	op() // connects
	b.ReportAllocs()
	start := processorTime(b)
	for b.Loop() {
		op()
		calls++
	}
	b.ReportMetric(float64(processorTime(b)-start)/float64(calls), "cpu-ns/op")
	return calls + 1
}

// turn is something that is measured in turns with others.
type turn struct {
	name string
	op   func()
}

// turnCalls is how many calls make a turn: so many that garbage is collected several
// times in each, or else it would always be the same ones who pay for it, and few
// enough that a machine is as fast for the next one.
const turnCalls = 2500

// inTurns measures how much more processor time each of several ops takes than
// base, in the way of [alone] but in turns: so that a machine that changes its
// speed, as shared ones do, changes it for all. Reported is, as NAME-added-ns/op,
// the median of the differences to base next to it, and as base-ns/op the median of
// base. Only that half of the rounds counts that took least as a whole: those in
// which the machine was disturbed least.
func inTurns(b *testing.B, base func(), others ...turn) {
	b.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	measure := func(op func()) float64 {
		start := processorTime(b)
		for range turnCalls {
			op()
		}
		return float64(processorTime(b)-start) / turnCalls
	}
	base() // connects
	for _, t := range others {
		t.op()
	}
	var rounds [][]float64 // all, base, and each of the others
	for b.Loop() {
		round := []float64{0, measure(base)}
		for _, t := range others {
			round = append(round, measure(t.op))
		}
		for _, took := range round[1:] {
			round[0] += took
		}
		rounds = append(rounds, round)
	}
	slices.SortFunc(rounds, func(x, y []float64) int { return cmp.Compare(x[0], y[0]) })
	rounds = rounds[:(len(rounds)+1)/2]
	middle := func(of func(round []float64) float64) float64 {
		var figures []float64
		for _, round := range rounds {
			figures = append(figures, of(round))
		}
		slices.Sort(figures)
		return figures[len(figures)/2]
	}
	b.ReportMetric(middle(func(round []float64) float64 { return round[1] }), "base-ns/op")
	for i, t := range others {
		b.ReportMetric(middle(func(round []float64) float64 { return round[2+i] - round[1] }), t.name+"-added-ns/op")
	}
}

// processorTime is what the process has used until now, in nanoseconds.
func processorTime(b *testing.B) int64 {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

// concurrently measures op at each number of callers: it runs b.N times in all.
// ns/op is then the wall time per run: 1e9 divided by it is the throughput.
func concurrently(b *testing.B, op func(ctx context.Context, caller int) error) {
	b.Helper()
	for _, n := range callers {
		b.Run(fmt.Sprintf("callers=%d", n), func(b *testing.B) {
			ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
			defer cancel()
			b.ReportAllocs()
			b.ResetTimer()
			if err := spread(ctx, n, b.N, op); err != nil {
				b.Error(err)
			}
		})
	}
}

// spread has so many callers run op so many times together. Each stops at its
// first error.
func spread(ctx context.Context, callers, times int, op func(ctx context.Context, caller int) error) error {
	var left atomic.Int64
	left.Store(int64(times))
	failed := make(chan error, callers)
	for i := range callers {
		go func() {
			var err error
			for err == nil && left.Add(-1) >= 0 {
				err = op(ctx, i)
			}
			failed <- err
		}()
	}
	var err error
	for range callers {
		err = errors.Join(err, <-failed)
	}
	return err
}
