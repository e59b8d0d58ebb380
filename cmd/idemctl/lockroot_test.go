package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	idemzk "github.com/idemkeeper/idemkeeper/engine/zookeeper"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// The locks of a service with a prefix of its own are found by the prefix, or by --lock-root.
func TestLockRoot(t *testing.T) {
	t.Parallel()
	redis := testserver.StartRedis(t)
	env := ensembleEnv(t, redis.URL())
	hosts, chroot, err := zookeeper.ParseConnectString(env["IDEMCTL_ZOOKEEPER"])
	if err != nil {
		t.Fatal(err)
	}
	engine, err := idemzk.New(t.Context(), zookeeper.Config{Servers: hosts, Chroot: chroot, Logger: slog.New(slog.DiscardHandler)}, redisClient(t, redis),
		idemzk.WithoutDurableMarkers(), redisstore.WithPrefix("team b"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	running, end, answered := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(answered)
		policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
		_, _ = engine.Do(context.Background(), idem.Operation{Scope: "m", Key: "a", Policy: &policy, Fingerprint: idem.FingerprintOf("a")}, func(context.Context) (idem.Response, error) {
			close(running)
			<-end
			return idem.Response{}, nil
		})
	}()
	<-running
	for root, want := range map[string]struct {
		code int
		text string
	}{
		"":                    {cli.ExitNothing, "is held"},
		"/idem/lock/team%20b": {cli.ExitNothing, "is held"},
		"/lock":               {cli.ExitUsage, "give --lock-root /idem/lock/team%20b"},
	} {
		got := idemctl(t, env, "--prefix", "team b", "--lock-root", root, "record", "resolve", "--scope", "m", "a", "--attempt", "1", "--not-applied", "--reason", "test")
		if got.code != want.code || !strings.Contains(got.stderr, want.text) {
			t.Errorf("record resolve with --lock-root %q: exit code %d, %q %q, want %d and %q", root, got.code, got.stdout, got.stderr, want.code, want.text)
		}
	}
	close(end)
	<-answered
}
