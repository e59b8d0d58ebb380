package main

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	goredis "github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/idemkeeper/idemkeeper/crashtest"
	crashgrpc "github.com/idemkeeper/idemkeeper/crashtest/grpc"
	crashpgx "github.com/idemkeeper/idemkeeper/crashtest/pgx"
	crashredis "github.com/idemkeeper/idemkeeper/crashtest/redis"
	crashzookeeper "github.com/idemkeeper/idemkeeper/crashtest/zookeeper"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
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
	kind  crashKind
}

type crashKind int

const (
	overHTTP crashKind = iota
	overGRPC
	oneInstance // over HTTP, with a database that belongs to one process
)

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

func (s crashServers) mariadb() string {
	server := testserver.StartMariaDB(s)
	s.restarts("MariaDB", server.Restart)
	return scratch.Empty(s, server.URL())
}

func (s crashServers) zookeeper() string {
	server := testserver.StartZooKeeper(s)
	s.restarts("ZooKeeper", server.Restart)
	return strings.Join(server.Hosts(), ",")
}

func (s crashServers) restarts(name string, restart func()) {
	s.restart[name] = func(context.Context) error { restart(); return nil }
}

// allCrashes is also true in a run of one case, which may be any.
func allCrashes() bool { return os.Getenv(envCrashtest) != "" || os.Getenv("CRASHTEST_CASE") != "" }

// crashModes are all ways to run the sample that docs/choosing.md has. The one in memory forgets its payments in a crash.
var crashModes = []crashMode{
	{"joined PostgreSQL", true, func(s crashServers) (string, []string) { return s.postgres(), nil }, overHTTP},
	{"joined PostgreSQL over gRPC", false, func(s crashServers) (string, []string) { return s.postgres(), nil }, overGRPC},
	{"joined MariaDB", false, func(s crashServers) (string, []string) { return s.mariadb(), nil }, overHTTP},
	{"joined SQLite", false, func(s crashServers) (string, []string) {
		return "sqlite:" + filepath.Join(s.TempDir(), "ledger.db"), nil
	}, oneInstance},
	{"rows of PostgreSQL", false, func(s crashServers) (string, []string) { return s.postgres(), []string{"--lock", "sql"} }, overHTTP},
	{"rows of MariaDB", false, func(s crashServers) (string, []string) { return s.mariadb(), []string{"--lock", "sql"} }, overHTTP},
	{"Redis alone", true, func(s crashServers) (string, []string) { return s.postgres(), []string{"--redis", s.redis()} }, overHTTP},
	{"Redis over gRPC", false, func(s crashServers) (string, []string) { return s.postgres(), []string{"--redis", s.redis()} }, overGRPC},
	{"Redis without a resolver", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--redis", s.redis(), "--resolver", "none"}
	}, overHTTP},
	{"ZooKeeper and Redis", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--zookeeper", s.zookeeper(), "--redis", s.redis()}
	}, overHTTP},
	{"ZooKeeper and Redis with markers", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--zookeeper", s.zookeeper(), "--redis", s.redis(), "--durable-markers"}
	}, overHTTP},
	{"ZooKeeper and Redis with markers over gRPC", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--zookeeper", s.zookeeper(), "--redis", s.redis(), "--durable-markers"}
	}, overGRPC},
	{"ZooKeeper and PostgreSQL with markers", false, func(s crashServers) (string, []string) {
		return s.postgres(), []string{"--zookeeper", s.zookeeper(), "--token-store", "sql", "--durable-markers"}
	}, overHTTP},
}

// TestSampleSurvives breaks the sample at every step of a payment.
func TestSampleSurvives(t *testing.T) {
	for _, m := range crashModes {
		if m.usual || allCrashes() {
			t.Run(m.name, func(t *testing.T) { crashtest.Run(t, m.subject()) })
		}
	}
}

const crashMerchants = 16

func (m crashMode) subject() crashtest.Subject {
	var ledger *database.DB
	s := crashtest.Subject{Restart: map[string]func(context.Context) error{}, Short: !allCrashes(), OneInstance: m.kind == oneInstance,
		Session: 4 * time.Second} // ZooKeeper is slow on a busy machine
	s.Setup = func(tb testing.TB) map[string]string {
		name, flags := m.start(crashServers{tb, s.Restart})
		ledger = scratch.Open(tb, name)
		// Cases run at once, and payments of one merchant wait for each other's accounts.
		var merchants []string
		for i := range crashMerchants {
			merchants = append(merchants, fmt.Sprintf("t%d=merchant_%d", i, i))
		}
		flags = append(flags, "--database", name, "--api-keys", strings.Join(merchants, ","))
		return map[string]string{"flags": strings.Join(flags, "\n")}
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
		if m.kind == overGRPC {
			env.Ready(app.GRPCAddr())
		} else {
			env.Ready(app.Addr())
		}
		return app.Serve(ctx, io.Discard)
	}
	s.Request = func(ctx context.Context, c crashtest.Call) (crashtest.Answer, error) {
		amount := 1250
		if c.Other {
			amount = 99
		}
		token := fmt.Sprintf("Bearer t%d", crc32.ChecksumIEEE([]byte(c.Key))%crashMerchants)
		if m.kind == overGRPC {
			return payOverGRPC(ctx, c, token, int64(amount))
		}
		body := strings.NewReader(fmt.Sprintf(`{"from":"alice","to":"bob","amount":%d,"currency":"USD","note":%q}`, amount, c.Key))
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL("/v1/payments"), body)
		if err != nil {
			return crashtest.Answer{}, err
		}
		req.Header.Set("Authorization", token)
		req.Header.Set("Idempotency-Key", c.Key)
		return crashtest.Send(req)
	}
	s.Effects = func(ctx context.Context, key string) (n int, err error) {
		err = ledger.Read.QueryRowContext(ctx, "SELECT count(*) FROM payments WHERE note = '"+key+"'").Scan(&n) // the key is of letters and digits
		return n, err
	}
	return s
}

func payOverGRPC(ctx context.Context, c crashtest.Call, token string, amount int64) (crashtest.Answer, error) {
	conn, err := grpc.NewClient("passthrough:///"+c.Addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry())
	if err != nil {
		return crashtest.Answer{}, err
	}
	defer conn.Close()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token, "idempotency-key", c.Key)
	p, err := paymentsv1.NewPaymentServiceClient(conn).CreatePayment(ctx,
		&paymentsv1.CreatePaymentRequest{From: "alice", To: "bob", Amount: amount, Currency: "USD", Note: c.Key})
	return crashgrpc.Answer(p, err)
}
