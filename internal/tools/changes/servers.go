package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// host is what testserver starts servers for. They run until stop.
type host struct {
	testing.TB // its other methods are not called
	dir        string
	stops      []func()
}

func (*host) Helper()               {}
func (*host) Failed() bool          { return false }
func (*host) Logf(string, ...any)   {}
func (h *host) Cleanup(stop func()) { h.stops = append(h.stops, stop) }
func (*host) Errorf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
}
func (*host) Fatalf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

func (h *host) TempDir() string {
	dir, err := os.MkdirTemp(h.dir, "server")
	if err != nil {
		h.Fatalf("%v", err)
	}
	h.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (h *host) stop() {
	for _, stop := range slices.Backward(h.stops) {
		stop()
	}
	h.stops = nil
}

// start starts the servers whose clients the tests link, and returns their names for the
// environment. Tests leave sessions and znodes in a server that they share, so ZooKeeper gets
// more memory than in a test.
func (h *host) start(linked []string) (env []string, err error) {
	defer func() {
		if failed, ok := recover().(error); ok {
			err = failed
			h.stop()
		}
	}()
	for _, server := range []struct {
		client, variable string
		start            func() string
	}{
		{"github.com/go-zookeeper/zk", testserver.EnvZooKeeper, func() string {
			return testserver.StartZooKeeper(h, testserver.WithJVMArgs("-Xmx1g")).Addr()
		}},
		{"github.com/redis/go-redis/v9", testserver.EnvRedis, func() string { return testserver.StartRedis(h).URL() }},
		{"github.com/jackc/pgx/v5", testserver.EnvPostgres, func() string { return testserver.StartPostgres(h).URL() }},
		{"github.com/go-sql-driver/mysql", testserver.EnvMariaDB, func() string { return testserver.StartMariaDB(h).URL() }},
	} {
		if slices.ContainsFunc(linked, func(path string) bool { return strings.TrimSpace(path) == server.client }) {
			env = append(env, server.variable+"="+server.start())
		}
	}
	return env, nil
}
