package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/crashtest"
	crashpgx "github.com/idemkeeper/idemkeeper/crashtest/pgx"
	crashredis "github.com/idemkeeper/idemkeeper/crashtest/redis"
	crashzookeeper "github.com/idemkeeper/idemkeeper/crashtest/zookeeper"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// envCrashtest has [TestSampleSurvives] run in every mode and with all faults, as make crashtest does.
const envCrashtest = "IDEMKEEPER_CRASHTEST"

// crashMode is a way to run the sample.
type crashMode struct {
	name  string
	usual bool // also without make crashtest
	start func(servers crashServers) (database string, flags []string)
}

// crashServers starts the servers of a mode. With all faults they are restarted, so they are not shared then.
type crashServers struct {
	testing.TB
	restart map[string]func(context.Context) error
}

func (s crashServers) postgres() string {
	if !allCrashes() {
		return scratch.Empty(s, testserver.SharedPostgres(s))
	}
	server := testserver.StartPostgres(s)
	s.restarts("PostgreSQL", server.Restart)
	return server.URL()
}

func (s crashServers) redis() string {
	if !allCrashes() {
		return testserver.StartRedis(s).URL()
	}
	server := testserver.StartRedis(s, testserver.WithRedisArgs("--appendonly", "yes", "--appendfsync", "always"))
	s.restarts("Redis", server.Restart)
	return server.URL()
}

func (s crashServers) zookeeper() string {
	server := testserver.StartZooKeeper(s)
	s.restarts("ZooKeeper", server.Restart)
	return strings.Join(server.Hosts(), ",")
}

func (s crashServers) restarts(name string, restart func()) {
	s.restart[name] = func(context.Context) error { restart(); return nil }
}

func allCrashes() bool { return os.Getenv(envCrashtest) != "" }

var crashModes = []crashMode{
	{"joined PostgreSQL", true, func(s crashServers) (string, []string) { return s.postgres(), nil }},
	{"Redis alone", true, func(s crashServers) (string, []string) { return s.postgres(), []string{"--redis", s.redis()} }},
	{"joined MariaDB", false, func(s crashServers) (string, []string) {
		server := testserver.StartMariaDB(s)
		s.restarts("MariaDB", server.Restart)
		return scratch.Empty(s, server.URL()), nil
	}},
	{"rows of PostgreSQL", false, func(s crashServers) (string, []string) { return s.postgres(), []string{"--lock", "sql"} }},
	{"Redis without a resolver", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--redis", s.redis(), "--resolver", "none"}
	}},
	{"ZooKeeper and Redis", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--zookeeper", s.zookeeper(), "--redis", s.redis()}
	}},
	{"ZooKeeper and Redis with markers", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--zookeeper", s.zookeeper(), "--redis", s.redis(), "--durable-markers"}
	}},
	{"ZooKeeper and PostgreSQL with markers", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--zookeeper", s.zookeeper(), "--token-store", "sql", "--durable-markers"}
	}},
}

// TestSampleSurvives breaks the sample at every step of a payment.
func TestSampleSurvives(t *testing.T) {
	for _, m := range crashModes {
		if m.usual || allCrashes() {
			t.Run(m.name, func(t *testing.T) { crashtest.Run(t, m.subject()) })
		}
	}
}

func (m crashMode) subject() crashtest.Subject {
	var ledger *database.DB
	s := crashtest.Subject{Restart: map[string]func(context.Context) error{}, Short: !allCrashes()}
	s.Setup = func(tb testing.TB) map[string]string {
		name, flags := m.start(crashServers{tb, s.Restart})
		ledger = scratch.Open(tb, name)
		return map[string]string{"flags": strings.Join(append(flags, "--database", name), "\n")}
	}
	s.Serve = func(ctx context.Context, env *crashtest.Env) error {
		args := append(strings.Split(env.Setting("flags"), "\n"), "--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0",
			"--session-timeout", env.Session.String(), "--zookeeper-tick", "500ms")
		cfg, err := ParseConfig(args, func(string) string { return "" }, io.Discard)
		if err != nil {
			return err
		}
		cfg.wrap = wrappers{
			database: database.Options{
				PGX:       func(cfg *pgx.ConnConfig) { crashpgx.Wrap(env, cfg) },
				Connector: env.Connector,
			},
			redis:     func(client goredis.UniversalClient) { crashredis.Wrap(env, client) },
			zookeeper: crashzookeeper.Dial(env, nil),
		}
		app, err := Start(ctx, cfg, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
		if err != nil {
			return err
		}
		env.Ready(app.Addr())
		return app.Serve(ctx, io.Discard)
	}
	s.Request = func(ctx context.Context, c crashtest.Call) (crashtest.Answer, error) {
		amount := 1250
		if c.Other {
			amount = 99
		}
		body := strings.NewReader(fmt.Sprintf(`{"from":"alice","to":"bob","amount":%d,"currency":"USD","note":%q}`, amount, c.Key))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL("/v1/payments"), body)
		if err != nil {
			return crashtest.Answer{}, err
		}
		req.Header.Set("Authorization", "Bearer demo")
		req.Header.Set("Idempotency-Key", c.Key)
		return crashtest.Send(req)
	}
	s.Effects = func(ctx context.Context, key string) (n int, err error) {
		err = ledger.Read.QueryRowContext(ctx, "SELECT count(*) FROM payments WHERE note = '"+key+"'").Scan(&n) // the key is of letters and digits
		return n, err
	}
	return s
}
