package bench

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/bench/curator"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
)

const (
	waiters       = 64
	waiterClients = 4
	// warmUp is how many pairs, or hand-overs, every peer makes before those that
	// are measured.
	warmUp = 4000
	// warmUpJava bounds the further time that Java programs get before they are
	// measured, the server before any peer's turn comes: with two processors, their
	// compilers are at work for about so long.
	warmUpJava = 15 * time.Second
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
		var mutexes []*recipes.Mutex
		for range waiterClients {
			mutexes = append(mutexes, recipes.MustNewMutex(openZooKeeper(b, cfg), "/one"))
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
	warmed(b, op)
	b.Run(fmt.Sprintf("waiters=%d", waiters), func(b *testing.B) {
		b.ReportAllocs()
		if err := spread(b.Context(), waiters, b.N, op); err != nil {
			b.Fatal(err)
		}
	})
}

// warmed has a peer of 64 callers make its first pairs, on a warm server.
func warmed(b *testing.B, op func(ctx context.Context, caller int) error) {
	b.Helper()
	warmServer(b)
	if err := spread(b.Context(), waiters, warmUp, op); err != nil {
		b.Fatal(err)
	}
}

var serverIsWarm bool

// warmServer has the server make what all peers ask of it: creates, lists, watched
// reads and deletes, one by one, by the library's lock recipe, and in transactions.
func warmServer(b *testing.B) {
	b.Helper()
	if serverIsWarm {
		return
	}
	serverIsWarm = true
	conn, root := zooKeeperConn(b), testserver.Chroot(b)
	for start := time.Now(); time.Since(start) < warmUpJava; {
		stress(b, conn, root)
	}
}

// stress makes some seconds' worth of what all peers ask of the server.
func stress(b *testing.B, conn *zk.Conn, root string) {
	b.Helper()
	acl := zk.WorldACL(zk.PermAll)
	if err := spread(b.Context(), waiters, warmUp/2, func(_ context.Context, caller int) error {
		l := zk.NewLock(conn, dir(root, int64(caller)), acl)
		if err := l.Lock(); err != nil {
			return err
		}
		return l.Unlock()
	}); err != nil {
		b.Fatal(err)
	}
	const together = 32
	if err := spread(b.Context(), 2, 5*warmUp/together, func(_ context.Context, caller int) error {
		var creates, deletes []any
		for i := range together {
			path := fmt.Sprintf("%s/%03x/%d-%d", root, caller, caller, i)
			creates = append(creates, &zk.CreateRequest{Path: path, Acl: acl, Flags: zk.FlagEphemeral})
			deletes = append(deletes, &zk.DeleteRequest{Path: path, Version: -1})
		}
		_, err := conn.Multi(creates...)
		if err == nil {
			_, err = conn.Multi(deletes...)
		}
		return err
	}); err != nil {
		b.Fatal(err)
	}
}

// startCurator starts Curator's program against the server of all others, and
// warms it up.
func startCurator(b *testing.B, s curator.Setup) *curator.Process {
	b.Helper()
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
	warmServer(b)
	// Until it gets no faster.
	last := time.Duration(math.MaxInt64)
	for start := time.Now(); time.Since(start) < warmUpJava; {
		took, err := p.Run(warmUp)
		if err != nil {
			b.Fatal(err)
		}
		if took > last*98/100 {
			break
		}
		last = took
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
