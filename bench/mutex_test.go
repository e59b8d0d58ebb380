package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/bench/curator"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

const (
	waiters       = 64
	waiterClients = 4
	// warmUp is how many hand-overs pass before those that are measured: for a
	// Java program, which gets faster, and for the server, which is one as well.
	warmUp = 4000
)

// BenchmarkMutex hands a fair lock on one path over, from waiter to waiter: each
// acquires it, releases it and queues up again. Both are acknowledged.
//
// Peers: Curator's InterProcessMutex and the lock recipe of go-zookeeper, which
// queue up in the same way. Neither has word of a lost session in time, nor a
// fencing token.
func BenchmarkMutex(b *testing.B) {
	b.Run("idemkeeper", func(b *testing.B) {
		cfg := zooKeeperConfig(b)
		var mutexes []*zookeeper.Mutex
		for range waiterClients {
			mutexes = append(mutexes, openZooKeeper(b, cfg).Mutex("/one"))
		}
		waiting(b, func(ctx context.Context, waiter int) error {
			lease, err := mutexes[waiter%waiterClients].Acquire(ctx)
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		})
	})
	b.Run("go-zookeeper", func(b *testing.B) {
		var conns []*zk.Conn
		for range waiterClients {
			conns = append(conns, zooKeeperConn(b))
		}
		path := testserver.Chroot(b)
		waiting(b, func(_ context.Context, waiter int) error {
			l := zk.NewLock(conns[waiter%waiterClients], path, zk.WorldACL(zk.PermAll))
			if err := l.Lock(); err != nil {
				return err
			}
			return l.Unlock()
		})
	})
	b.Run("curator", func(b *testing.B) {
		p := startCurator(b, curator.Setup{Clients: waiterClients, Callers: waiters, Paths: []string{testserver.Chroot(b)}})
		b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) { curatorPairs(b, p) })
	})
}

// waiting measures op at so many waiters, having warmed it up.
func waiting(b *testing.B, op func(ctx context.Context, waiter int) error) {
	b.Helper()
	if err := spread(b.Context(), waiters, warmUp, op); err != nil {
		b.Fatal(err)
	}
	b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
		b.ReportAllocs()
		if err := spread(b.Context(), waiters, b.N, op); err != nil {
			b.Fatal(err)
		}
	})
}

// startCurator starts Curator's program against the server of all others, and
// warms it up. Where it cannot be run the case is left out, which cmd/compare
// tells.
func startCurator(b *testing.B, s curator.Setup) *curator.Process {
	b.Helper()
	if err := curator.Available(); err != nil {
		b.Skip(err)
	}
	s.Servers, s.SessionTimeout = testserver.SharedZooKeeper(b), sessionTimeout
	p, err := curator.Start(context.Background(), s)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := p.Close(); err != nil {
			b.Error(err)
		}
	})
	if _, err := p.Run(warmUp); err != nil {
		b.Fatal(err)
	}
	return p
}

// curatorPairs reports how long b.N pairs take inside the Java program. What is
// told of allocations is that of this process, which does nothing.
func curatorPairs(b *testing.B, p *curator.Process) {
	b.Helper()
	took, err := p.Run(b.N)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(b.N), "ns/op")
}
