package bench

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/bench/curator"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

// lockDirs is how many parents the locks are spread over. Ours makes this many
// by itself; its peers are given as many. They are made before the clock runs.
const lockDirs = 4096

// BenchmarkLock takes and releases a ZooKeeper lock that nobody else wants, both
// acknowledged, over one session for all callers, each on a path of its own, again
// and again.
//
// Peers: the lock recipe of go-zookeeper, and Curator's InterProcessMutex. They
// create a sequential node under a path of its own, list that path's children
// and have the lock when their node is the first. They queue waiters in order,
// which ours does not, and have neither a fencing token nor word of a lost
// session in time. Their paths would have to be created with every fresh key
// and be left behind; that is spared them here.
func BenchmarkLock(b *testing.B) {
	b.Run("idemkeeper", func(b *testing.B) {
		locker := zooKeeperLocker(b)
		pair := func(ctx context.Context, caller int) error {
			return lockAndRelease(ctx, locker, idem.NewKeyID("", idem.Key(strconv.Itoa(caller))))
		}
		warmed(b, pair)
		concurrently(b, pair)
	})
	b.Run("go-zookeeper", func(b *testing.B) {
		conn := zooKeeperConn(b)
		root := zooKeeperDirs(b, conn)
		pair := func(_ context.Context, caller int) error {
			l := zk.NewLock(conn, dir(root, int64(caller)), zk.WorldACL(zk.PermAll))
			if err := l.Lock(); err != nil {
				return err
			}
			return l.Unlock()
		}
		warmed(b, pair)
		concurrently(b, pair)
	})
	b.Run("curator", func(b *testing.B) {
		const callers = 64
		root := testserver.Chroot(b)
		s := curator.Setup{Clients: 1, Callers: callers}
		for i := range int64(callers) {
			s.Paths = append(s.Paths, dir(root, i))
		}
		p := startCurator(b, s)
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) { curatorPairs(b, p) })
	})
}

func lockAndRelease(ctx context.Context, locker *zookeeper.Locker, id driver.KeyID) error {
	lease, err := locker.TryAcquire(ctx, driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
	if err != nil {
		return err
	}
	return lease.Release(ctx)
}

// sessionTimeout is long, so that a busy machine does not lose a session.
const sessionTimeout = 40 * time.Second

// zooKeeperLocker is ours, with the parents of all locks made.
func zooKeeperLocker(b *testing.B) *zookeeper.Locker {
	b.Helper()
	locker := openZooKeeper(b, zooKeeperConfig(b)).Locker()
	before(b, func(i int64) error {
		// A parent is the first three hex digits of the key ID.
		return lockAndRelease(b.Context(), locker, driver.KeyID{byte(i >> 4), byte(i << 4)})
	})
	return locker
}

// zooKeeperConfig is one with a chroot of its own.
func zooKeeperConfig(b *testing.B) zookeeper.Config {
	b.Helper()
	return zookeeper.Config{
		Servers: testserver.SharedZooKeeper(b), Chroot: testserver.Chroot(b),
		SessionTimeout: sessionTimeout, Logger: slog.New(slog.DiscardHandler),
	}
}

func openZooKeeper(b *testing.B, cfg zookeeper.Config) *zookeeper.Client {
	b.Helper()
	client, err := zookeeper.Open(b.Context(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close(context.Background()) })
	return client
}

// zooKeeperConn is a bare client.
func zooKeeperConn(b *testing.B) *zk.Conn {
	b.Helper()
	conn, _, err := zk.Connect(testserver.SharedZooKeeper(b), sessionTimeout, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	return conn
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// zooKeeperDirs makes the parents for a peer's locks.
func zooKeeperDirs(b *testing.B, conn *zk.Conn) (root string) {
	b.Helper()
	root = testserver.Chroot(b)
	if _, err := conn.Create(root, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		b.Fatal(err)
	}
	before(b, func(i int64) error {
		_, err := conn.Create(dir(root, i), nil, 0, zk.WorldACL(zk.PermAll))
		return err
	})
	return root
}

func dir(root string, i int64) string { return fmt.Sprintf("%s/%03x", root, i%lockDirs) }

// before runs op for every parent, some at a time.
func before(b *testing.B, op func(i int64) error) {
	b.Helper()
	limit, failed := make(chan struct{}, 64), make(chan error, lockDirs)
	for i := range int64(lockDirs) {
		limit <- struct{}{}
		go func() {
			failed <- op(i)
			<-limit
		}()
	}
	for range lockDirs {
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
	}
}
