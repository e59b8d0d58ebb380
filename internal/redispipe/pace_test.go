package redispipe_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/redispipe"
)

// network stands for a server behind a network. It counts the pipelines under way.
type network struct {
	server

	mu             sync.Mutex
	trip           time.Duration
	underWay, most int
	refuses        bool
}

func (n *network) set(trip time.Duration) { n.mu.Lock(); n.trip = trip; n.mu.Unlock() }
func (n *network) fail(refuses bool)      { n.mu.Lock(); n.refuses = refuses; n.mu.Unlock() }

func (n *network) ProcessHook(goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error { return n.answer(ctx, []goredis.Cmder{cmd}) }
}

func (n *network) ProcessPipelineHook(goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return n.answer
}

func (n *network) answer(ctx context.Context, cmds []goredis.Cmder) error {
	n.mu.Lock()
	if n.refuses {
		defer n.mu.Unlock()
		for _, cmd := range cmds {
			cmd.SetErr(context.DeadlineExceeded)
		}
		return context.DeadlineExceeded
	}
	n.underWay++
	n.most = max(n.most, n.underWay)
	trip := n.trip
	n.mu.Unlock()
	time.Sleep(trip)
	n.mu.Lock()
	n.underWay--
	n.mu.Unlock()
	return n.server.answer(ctx, cmds)
}

// wantUnderWay wants so many pipelines under way now.
func (n *network) wantUnderWay(t *testing.T, want int) {
	t.Helper()
	synctest.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.underWay != want {
		t.Errorf("%d pipelines are under way, want %d", n.underWay, want)
	}
}

// highest is the largest number of pipelines under way so far.
func (n *network) highest() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.most
}

// withNetwork runs a test with a lane that knows the round trip.
func withNetwork(t *testing.T, trip time.Duration, pool int, test func(t *testing.T, n *network, l *redispipe.Lane)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &network{trip: trip}
		client := goredis.NewClient(&goredis.Options{Addr: "127.0.0.1:1", PoolSize: pool})
		defer client.Close()
		client.AddHook(n)
		l := redispipe.New(client)
		if r := <-call(t.Context(), l, "first"); r.err != nil {
			t.Fatal(r.err)
		}
		test(t, n, l)
	})
}

func calls(t *testing.T, l *redispipe.Lane, n int) (all []<-chan result) {
	t.Helper()
	for i := range n {
		all = append(all, call(t.Context(), l, strconv.Itoa(i)))
	}
	return all
}

func wantAnswers(t *testing.T, all []<-chan result) {
	t.Helper()
	for i, c := range all {
		if r := <-c; r.err != nil || r.text != strconv.Itoa(i) {
			t.Errorf("call %d = %+v, want its own answer", i, r)
		}
	}
}

func TestCallsToAFarServerDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	withNetwork(t, 2*time.Millisecond, 1000, func(t *testing.T, n *network, l *redispipe.Lane) {
		start := time.Now()
		all := calls(t, l, 8)
		n.wantUnderWay(t, 8)
		wantAnswers(t, all)
		if took := time.Since(start); took != 2*time.Millisecond {
			t.Errorf("8 calls took %v, want one round trip", took)
		}
	})
}

// Beyond a burst, calls share pipelines that start at intervals.
func TestPipelinesToAFarServerArePaced(t *testing.T) {
	t.Parallel()
	withNetwork(t, 10*time.Millisecond, 1000, func(t *testing.T, n *network, l *redispipe.Lane) {
		all := calls(t, l, 100)
		n.wantUnderWay(t, 9) // the first one, and a burst
		time.Sleep(200 * time.Microsecond)
		n.wantUnderWay(t, 9)
		one := call(t.Context(), l, "100")
		n.wantUnderWay(t, 10) // it takes the others along
		wantAnswers(t, append(all, one))
		n.wantUnderWay(t, 0)
	})
}

func TestPipelinesLeaveConnectionsToOthers(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ pool, want int }{{1, 1}, {8, 2}, {40, 10}, {1000, 32}} {
		withNetwork(t, 100*time.Millisecond, tt.pool, func(t *testing.T, n *network, l *redispipe.Lane) {
			var all []<-chan result
			for range 50 { // within the patience of the calls that wait
				all = append(all, call(t.Context(), l, strconv.Itoa(len(all))))
				time.Sleep(200 * time.Microsecond)
			}
			if got := n.highest(); got != tt.want {
				t.Errorf("%d pipelines were under way with a pool of %d connections, want %d", got, tt.pool, tt.want)
			}
			wantAnswers(t, all)
		})
	}
}

// While a server hangs, no call waits longer than the patience of the list before it is sent, and few connections are used.
func TestAFarServerThatHangs(t *testing.T) {
	t.Parallel()
	withNetwork(t, 2*time.Millisecond, 40, func(t *testing.T, n *network, l *redispipe.Lane) {
		n.set(time.Second)
		var all []<-chan result
		for range 500 {
			all = append(all, call(t.Context(), l, strconv.Itoa(len(all))))
			time.Sleep(time.Millisecond)
		}
		if got := n.highest(); got > 10+500/20 {
			t.Errorf("%d pipelines are under way after 500 ms, want 10 and one for each 20 ms", got)
		}
		n.set(2 * time.Millisecond)
		for i, c := range all {
			if r := <-c; r.err != nil || r.took > time.Second+20*time.Millisecond {
				t.Errorf("call %d = %+v, want an answer after a second and 20 ms", i, r)
			}
		}
	})
}

// The distance may change, for example after a fail-over. Then the fastest pipeline of the last 15 to 30 seconds counts.
func TestDistanceIsLearntAnew(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		before, after time.Duration
		want          []int // pipelines under way of three calls, by the number of minutes since the change
	}{
		{100 * time.Microsecond, 2 * time.Millisecond, []int{1, 3}},
		{2 * time.Millisecond, 100 * time.Microsecond, []int{3, 1}},
	} {
		withNetwork(t, tt.before, 100, func(t *testing.T, n *network, l *redispipe.Lane) {
			wantAnswers(t, calls(t, l, 3))
			n.set(tt.after)
			for _, want := range tt.want {
				all := calls(t, l, 3)
				n.wantUnderWay(t, want)
				wantAnswers(t, all)
				for range 4 {
					time.Sleep(15 * time.Second)
					<-call(t.Context(), l, "now and then")
				}
			}
		})
	}
}

// A refused connection takes no round trip.
func TestCallsWithoutAnAnswerDoNotTellTheDistance(t *testing.T) {
	t.Parallel()
	withNetwork(t, 2*time.Millisecond, 100, func(t *testing.T, n *network, l *redispipe.Lane) {
		n.fail(true)
		for range 10 {
			<-call(t.Context(), l, "refused")
		}
		n.fail(false)
		all := calls(t, l, 3)
		n.wantUnderWay(t, 3)
		wantAnswers(t, all)
	})
}
