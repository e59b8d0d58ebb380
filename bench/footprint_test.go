package bench

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// BenchmarkFootprint counts what a fresh payment leaves on disks and in memory. 256 callers
// pay at a server of Redis with an append-only file and at one server of ZooKeeper. A run
// of 20,000 payments or more is exact to a byte or two:
//
//	go test -run '^$' -bench Footprint -benchtime 20000x .
//
// aof-B is the growth of the append-only file of Redis, redis-B that of its memory. log-B is
// the growth of the transaction log of ZooKeeper, and txns are its transactions. All are
// divided by the payments. The response has 105 bytes.
func BenchmarkFootprint(b *testing.B) {
	for _, c := range []struct {
		name    string
		options []zookeeper.LockerOption
	}{{"plain", nil}, {"markers", []zookeeper.LockerOption{zookeeper.WithDurableMarkers()}}} {
		b.Run(c.name, func(b *testing.B) { footprint(b, c.options) })
	}
}

func footprint(b *testing.B, options []zookeeper.LockerOption) {
	b.Helper()
	redis := testserver.StartRedis(b, testserver.WithRedisArgs("--appendonly", "yes"))
	client, err := redisstore.Connect(redis.URL())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	store, err := redisstore.New(b.Context(), client)
	if err != nil {
		b.Fatal(err)
	}
	ensemble := testserver.StartZooKeeper(b, testserver.AsInProduction())
	config := zookeeper.Config{Servers: ensemble.Hosts(), SessionTimeout: sessionTimeout, Logger: slog.New(slog.DiscardHandler)}
	engine := newEngine(b, openZooKeeper(b, config).Locker(options...), store)
	execute, ks := executeOn(b, engine), newKeys()
	pay := func(times int) {
		b.Helper()
		if err := spread(b.Context(), 256, times, func(ctx context.Context, _ int) error { return execute(ctx, ks.next()) }); err != nil {
			b.Fatal(err)
		}
	}
	pay(1) // the prefix, the incarnations and the scripts are there from now on

	before := readFootprint(b, redis, ensemble)
	b.ResetTimer()
	pay(b.N)
	b.StopTimer()
	after := readFootprint(b, redis, ensemble)
	for unit, n := range map[string]int64{
		"aof-B/payment":   after.appended - before.appended,
		"redis-B/payment": after.memory - before.memory,
		"log-B/payment":   after.log - before.log,
		"txns/payment":    after.zxid - before.zxid,
	} {
		b.ReportMetric(float64(n)/float64(b.N), unit)
	}
}

// footprintReading is in bytes, apart from the zxid.
type footprintReading struct{ appended, memory, log, zxid int64 }

func readFootprint(b *testing.B, redis *testserver.Redis, ensemble *testserver.ZooKeeper) (r footprintReading) {
	b.Helper()
	var err, all error
	r.appended, err = redisInfo(redis, "persistence", "aof_current_size")
	all = errors.Join(all, err)
	r.memory, err = redisInfo(redis, "memory", "used_memory")
	all = errors.Join(all, err)
	r.log, err = transactionLog(ensemble)
	all = errors.Join(all, err)
	r.zxid, err = testserver.LastZxid(ensemble.Addr())
	if all = errors.Join(all, err); all != nil {
		b.Fatal(all)
	}
	return r
}

func redisInfo(redis *testserver.Redis, section, field string) (int64, error) {
	answer, err := redis.Do("INFO", section)
	if err != nil {
		return 0, err
	}
	return numberAfter(strings.Join(answer, "\n"), field+":")
}

// transactionLog is the length of all transaction logs, without the zeros that the server
// puts behind them in advance.
func transactionLog(server *testserver.ZooKeeper) (int64, error) {
	conf, err := server.Command("conf")
	if err != nil {
		return 0, err
	}
	_, dir, found := strings.Cut(conf, "dataLogDir=")
	if !found {
		return 0, errors.New("conf names no dataLogDir")
	}
	dir, _, _ = strings.Cut(dir, "\n")
	files, err := filepath.Glob(filepath.Join(dir, "log.*"))
	if err != nil || len(files) == 0 {
		return 0, errors.Join(err, errors.New("no transaction log in "+dir))
	}
	var length int64
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		length += int64(len(bytes.TrimRight(data, "\x00")))
	}
	return length, nil
}

func numberAfter(text, name string) (int64, error) {
	_, rest, found := strings.Cut(text, name)
	if !found {
		return 0, errors.New("no " + name)
	}
	rest, _, _ = strings.Cut(rest, "\n")
	return strconv.ParseInt(strings.TrimSpace(rest), 10, 64)
}
