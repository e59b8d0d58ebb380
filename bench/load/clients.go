package load

import (
	"context"
	"fmt"

	"github.com/go-zookeeper/zk"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// zooKeeperLocker is ours. It finds the parents of all locks.
func (s *service) zooKeeperLocker(ctx context.Context) (*zookeeper.Locker, error) {
	conn, err := s.zooKeeperConn()
	if err != nil {
		return nil, err
	}
	conn.Close()
	client, err := zookeeper.Open(ctx, zookeeper.Config{
		Servers: s.config.ZooKeeper, Chroot: s.chroot(), Root: lockRoot,
		SessionTimeout: sessionTimeout, TickTime: tickTime, Logger: silent,
	})
	if err != nil {
		return nil, err
	}
	s.onClose(client.Close)
	return client.Locker(), nil
}

func (s *service) chroot() string { return "/load-" + s.config.Case }

// zooKeeperConn is a bare client. It has made the parents of all locks. The caller closes
// it.
func (s *service) zooKeeperConn() (*zk.Conn, error) {
	conn, _, err := zk.Connect(s.config.ZooKeeper, sessionTimeout, zk.WithLogInfo(false), zk.WithLogger(noLogger{}))
	if err != nil {
		return nil, err
	}
	if err := makeParents(conn, s.chroot()); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// makeParents makes the root of locks and the 4,096 parents below it, which are named by
// the first three hexadecimal digits of a key ID.
func makeParents(conn *zk.Conn, chroot string) error {
	root := chroot + lockRoot
	batch := []any{create(chroot), create(root)}
	for i := range 4096 {
		batch = append(batch, create(fmt.Sprintf("%s/%03x", root, i)))
		if len(batch) < 128 && i < 4095 {
			continue
		}
		if _, err := conn.Multi(batch...); err != nil {
			return err
		}
		batch = nil
	}
	return nil
}

func create(path string) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll)}
}

type noLogger struct{}

func (noLogger) Printf(string, ...any) {}

// redisClient is one client for lock and records, the same for every case. Over a network its pool has a connection for each client of the run. The default of
// go-redis, ten for each processor, would bound the flows that send their calls one by one: at 2 ms a trip, 20
// connections carry 10,000 calls a second. On loopback the default is enough.
func (s *service) redisClient() (goredis.UniversalClient, error) {
	if s.redis != nil {
		return s.redis, nil
	}
	client, err := redisstore.Connect(s.config.Redis, func(o *goredis.UniversalOptions) { o.PoolSize = s.config.RedisPool })
	if err != nil {
		return nil, err
	}
	s.redis = client
	s.onClose(func(context.Context) error { return client.Close() })
	return client, nil
}
