package bench

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-zookeeper/zk"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// BenchmarkExecution is one execution of a fresh key where several instances
// share the keys: lock, look, run, store the receipt, unlock.
//
// Peers: the two flows that are usually written by hand, on the same servers
// and the same Redis client. zookeeper-flow creates an ephemeral znode, GETs the
// result, runs, SETs the result and deletes the znode. redislock-flow does that
// with a bsm/redislock instead of the znode: SET NX with a time-out, and a
// script that compares and deletes. Neither compares requests, records that an
// execution has begun (a crash after the effect runs it again), fences a late
// holder or notices that Redis lost its data, and redislock guesses how long a
// handler may take. Ours answers before its znode is gone, as it may: a repeat
// finds the stored outcome before it asks for the lock.
//
// redislock-flow has no row in the comparisons: it never asks ZooKeeper, whose
// price is what the difference would show. It waits for the Redis lock.
func BenchmarkExecution(b *testing.B) {
	for _, flow := range []struct {
		name  string
		start func(*testing.B) (execute func(context.Context, string) error)
	}{{"idemkeeper", executeIdemkeeper}, {"zookeeper-flow", executeZooKeeperFlow}, {"redislock-flow", executeRedislockFlow}} {
		b.Run(flow.name, func(b *testing.B) {
			execute, ks := flow.start(b), newKeys()
			concurrently(b, func(ctx context.Context, _ int) error { return execute(ctx, ks.next()) })
		})
	}
}

func executeIdemkeeper(b *testing.B) func(context.Context, string) error {
	b.Helper()
	store, err := redisstore.New(b.Context(), redisClient(b), redisstore.WithPrefix(testserver.KeyPrefix(b)))
	if err != nil {
		b.Fatal(err)
	}
	return executeOn(b, newEngine(b, zooKeeperLocker(b), store))
}

// executeOn makes an execution of a key.
func executeOn(b *testing.B, engine *idem.Engine) func(context.Context, string) error {
	b.Helper()
	p, err := policy.WithDefaults()
	if err != nil {
		b.Fatal(err)
	}
	parts := idem.RequestParts{Operation: "http POST /pay", ContentType: "application/json", Body: []byte(order)}
	return func(ctx context.Context, key string) error {
		res, err := engine.Do(ctx, idem.Operation{
			Transport: idem.TransportHTTP, Key: idem.Key(key), Policy: &p,
			Fingerprint: func(version uint8) (driver.Fingerprint, error) { return idem.RequestFingerprint(version, parts) },
		}, func(context.Context) (idem.Response, error) {
			return idem.Response{Status: 201, Body: []byte(receipt)}, nil
		})
		if err == nil && res.Replayed {
			return errors.New("a fresh key was answered with a replay")
		}
		return err
	}
}

func executeZooKeeperFlow(b *testing.B) func(context.Context, string) error {
	b.Helper()
	client, conn := redisClient(b), zooKeeperConn(b)
	root, prefix := zooKeeperDirs(b, conn), testserver.KeyPrefix(b)
	return func(ctx context.Context, key string) error {
		sum := sha256.Sum256([]byte(key))
		hash := hex.EncodeToString(sum[:])
		path, err := conn.Create(root+"/"+hash[:3]+"/"+hash[3:], nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll))
		if err != nil {
			return err
		}
		if err := runOnce(ctx, client, prefix+hash); err != nil {
			return err
		}
		return conn.Delete(path, -1)
	}
}

func executeRedislockFlow(b *testing.B) func(context.Context, string) error {
	b.Helper()
	client, prefix := redisClient(b), testserver.KeyPrefix(b)
	locker := redislock.New(client)
	return func(ctx context.Context, key string) error {
		lock, err := locker.Obtain(ctx, prefix+"lock:"+key, 30*time.Second, nil)
		if err != nil {
			return err
		}
		if err := runOnce(ctx, client, prefix+key); err != nil {
			return err
		}
		return lock.Release(ctx)
	}
}

// runOnce is what the flows do between lock and unlock. The handler is empty.
func runOnce(ctx context.Context, client goredis.UniversalClient, key string) error {
	if err := client.Get(ctx, key).Err(); !errors.Is(err, goredis.Nil) {
		return fmt.Errorf("result of a fresh key: %w", err)
	}
	return client.Set(ctx, key, receipt, 24*time.Hour).Err()
}

func redisClient(b *testing.B) goredis.UniversalClient {
	b.Helper()
	client, err := redisstore.Connect(testserver.SharedRedis(b))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	return client
}
