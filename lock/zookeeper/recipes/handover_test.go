package recipes

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// A hand-over costs one delete, one notification and one read, however many
// wait: as counted on the way to the server.
func TestMutexHandOverCostsTheSameHoweverManyWait(t *testing.T) {
	t.Parallel()
	for _, waiters := range []int{10, 40} {
		t.Run(fmt.Sprintf("waiters=%d", waiters), func(t *testing.T) {
			t.Parallel()
			const times = 5
			q := newHandOvers(t, waiters)
			// The first holder has made the line, and tries to remove it too.
			lease := q.next(q.turn())
			q.settle("the first hand-over", func(testserver.Traffic) bool { return true })
			q.counter.Reset()
			for range times {
				lease = q.next(lease)
			}
			seen := q.settle("the last hand-over", func(testserver.Traffic) bool { return true })
			want := testserver.Traffic{
				// Each delete is in a transaction, with the pin of its session.
				Requests:      map[int32]int{testserver.OpMulti: times, testserver.OpGetChildren2: times},
				Notifications: times,
			}
			if !reflect.DeepEqual(seen, want) {
				t.Errorf("%d hand-overs with %d waiting took %+v, want %+v", times, waiters, seen, want)
			}
			q.leave()
			lease.ReleaseInBackground()
		})
	}
}

// handOvers is a line of two clients whose traffic is counted.
type handOvers struct {
	t       *testing.T
	counter *testserver.Counter
	granted chan *Lease
	leave   context.CancelFunc // ends the waiting
}

// newHandOvers puts one holder and so many waiters in line, one after the other,
// in turns between the clients. Each has looked at the line once, and each but
// the first has left a watch at the place before.
func newHandOvers(t *testing.T, waiters int) *handOvers {
	cfg := sharedConfig(t)
	proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
	cfg.Servers = []string{proxy.Addr()}
	q := &handOvers{t: t, counter: proxy.Count(cfg.Chroot + "/line"), granted: make(chan *Lease, waiters+1)}
	clients := []*zookeeper.Client{open(t, cfg), open(t, cfg)}
	ctx, leave := context.WithCancel(bounded(t))
	q.leave = leave
	t.Cleanup(leave)

	for i := range waiters + 1 {
		m := MustNewMutex(clients[i%2], "/line")
		go func() {
			if lease, err := m.Acquire(ctx); err == nil {
				q.granted <- lease
			} else if ctx.Err() == nil {
				t.Errorf("Acquire() = %v", err)
			}
		}()
		q.settle("place in line", func(seen testserver.Traffic) bool {
			return seen.Requests[testserver.OpGetChildren2] == i+1 && seen.Requests[testserver.OpGetData] == i
		})
	}
	return q
}

// next hands the lock over.
func (q *handOvers) next(l *Lease) *Lease {
	q.t.Helper()
	if err := l.Release(bounded(q.t)); err != nil {
		q.t.Fatalf("Release() = %v", err)
	}
	next := q.turn()
	if next.held.Table() == l.held.Table() {
		q.t.Fatal("the lock went to the same client, want the other one")
	}
	return next
}

// turn waits for whose turn it is.
func (q *handOvers) turn() *Lease {
	q.t.Helper()
	select {
	case l := <-q.granted:
		return l
	case <-time.After(patience):
		q.t.Fatalf("nobody's turn after %v", patience)
		return nil
	}
}

// settle waits until what was counted is as wanted and nothing is unanswered.
func (q *handOvers) settle(what string, ok func(testserver.Traffic) bool) testserver.Traffic {
	q.t.Helper()
	var seen testserver.Traffic
	until(q.t, what, func() bool {
		seen = q.counter.Seen()
		return seen.Unanswered == 0 && ok(seen)
	})
	return seen
}
