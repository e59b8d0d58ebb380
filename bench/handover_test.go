package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
)

// BenchmarkHandOver hands a fair lock over from one client to the next, with so
// many waiting behind: the time from the release to the next one's turn, and what
// passed between the clients and the server for it, as requests/op: one delete,
// one notification, one read. Who had the lock queues up again outside of that.
func BenchmarkHandOver(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("waiters=%d", n), func(b *testing.B) {
			l := newLineUp(b)
			for i := range n + 1 {
				l.enter(i)
			}
			last := n
			// Who made the line tries to remove it too, once.
			lease := l.next(<-l.granted)
			var took time.Duration
			requests := 0
			b.ResetTimer()
			for range b.N {
				last++
				l.enter(last)
				l.counter.Reset()
				start := time.Now()
				lease = l.next(lease)
				took += time.Since(start)
				l.settle(func(testserver.Traffic) bool { return true })
				requests += l.counter.Seen().Total()
			}
			b.StopTimer()
			b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/op")
			b.ReportMetric(float64(requests)/float64(b.N), "requests/op")
			lease.ReleaseInBackground()
		})
	}
}

// lineUp is a line of waiters whose traffic is counted.
type lineUp struct {
	b       *testing.B
	counter *testserver.Counter
	mutexes []*recipes.Mutex
	granted chan *recipes.Lease
	ctx     context.Context // of those who wait
}

func newLineUp(b *testing.B) *lineUp {
	b.Helper()
	cfg := zooKeeperConfig(b)
	proxy := testserver.StartZooKeeperProxy(b, cfg.Servers[0])
	cfg.Servers = []string{proxy.Addr()}
	l := &lineUp{b: b, counter: proxy.Count(cfg.Chroot + "/line"), granted: make(chan *recipes.Lease, 1)}
	for range waiterClients {
		l.mutexes = append(l.mutexes, recipes.MustNewMutex(openZooKeeper(b, cfg), "/line"))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	b.Cleanup(cancel)
	l.ctx = ctx
	return l
}

// enter puts the i-th waiter in line, of the client whose turn it is, and returns
// when it waits: when it has looked at the line and, unless it is the first, left
// a watch at the place before.
func (l *lineUp) enter(i int) {
	l.b.Helper()
	l.counter.Reset()
	go func() {
		lease, err := l.mutexes[i%waiterClients].Acquire(l.ctx)
		if err == nil {
			l.granted <- lease
		} else if l.ctx.Err() == nil {
			l.b.Errorf("Acquire() = %v", err)
		}
	}()
	l.settle(func(seen testserver.Traffic) bool {
		return seen.Requests[testserver.OpGetChildren2] == 1 && (i == 0 || seen.Requests[testserver.OpGetData] == 1)
	})
}

// next hands the lock over.
func (l *lineUp) next(lease *recipes.Lease) *recipes.Lease {
	l.b.Helper()
	if err := lease.Release(l.ctx); err != nil {
		l.b.Fatal(err)
	}
	select {
	case lease = <-l.granted:
	case <-l.ctx.Done():
		l.b.Fatal(l.ctx.Err())
	}
	return lease
}

// settle waits until what was counted is as wanted and nothing is unanswered.
func (l *lineUp) settle(ok func(testserver.Traffic) bool) {
	l.b.Helper()
	for {
		if seen := l.counter.Seen(); seen.Unanswered == 0 && ok(seen) {
			return
		}
		if l.ctx.Err() != nil {
			l.b.Fatal(l.ctx.Err())
		}
		time.Sleep(100 * time.Microsecond)
	}
}
