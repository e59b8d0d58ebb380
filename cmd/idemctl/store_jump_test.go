package main

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// Services without ZooKeeper are refused after a jump of Redis's clock, also when they are started again. The
// operator accepts the jump without a witness, and starts them again.
func TestJumpIsAcceptedWithoutZooKeeper(t *testing.T) {
	t.Parallel()
	server := testserver.StartRedis(t, testserver.OnRedisMachine(testserver.NewMachine(t)))
	open := func() *redisstore.Store {
		t.Helper()
		store, err := redisstore.New(t.Context(), redisClient(t, server), redisstore.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	running := open()
	env := map[string]string{"IDEMCTL_REDIS": server.URL()}
	accept := []string{"store", "accept", "--no-zookeeper"}
	if got := idemctl(t, env, accept...); got.code != 0 || !strings.Contains(got.stdout, "nothing was lost") {
		t.Errorf("store accept before the jump: %+v, want that nothing was lost", got)
	}
	begin(t, running, "before")
	server.StepClock(25 * time.Hour)
	for end := time.Now().Add(30 * time.Second); !errors.Is(running.Ping(t.Context()), driver.ErrStoreLost); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the store does not notice the jump")
		}
	}
	server.StepClock(0)
	if err := open().Ping(t.Context()); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Ping() of a service that starts now = %v, want %v", err, driver.ErrStoreLost)
	}
	if got := idemctl(t, env, accept[:2]...); got.code != cli.ExitUsage || !strings.Contains(got.stderr, "--no-zookeeper") {
		t.Errorf("store accept without the word that there is no ZooKeeper: %+v, want exit code %d", got, cli.ExitUsage)
	}
	if got := idemctl(t, env, accept...); got.code != 0 || !strings.Contains(got.stdout, "accepted the loss of 64 shards") || !strings.Contains(got.stdout, "restart") {
		t.Errorf("store accept: %+v, want 64 shards", got)
	}
	if err := open().Ping(t.Context()); err != nil {
		t.Errorf("Ping() of a service that starts now = %v, want <nil>", err)
	}
}
