package stores

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	idemredis "github.com/idemkeeper/idemkeeper/engine/redis"
	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	idemzk "github.com/idemkeeper/idemkeeper/engine/zookeeper"
	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// guaranteed are engines on real servers, by the names of the table.
func guaranteed(t *testing.T) map[string]*idem.Engine {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	ensemble := zookeeper.Config{Servers: testserver.SharedZooKeeper(t), Chroot: testserver.Chroot(t), Logger: log}
	zk, err := zookeeper.Open(t.Context(), ensemble)
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = zk.Close(context.Background()) })
	_, records, client := inRedis(t, testserver.SharedRedis(t), nil)
	db, err := sql.Open("pgx", testserver.SharedPostgres(t))
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(4)
	tables, logger := sqlstore.WithTablePrefix(fmt.Sprintf("guaranteed_%x_", rand.Uint32())), sqlstore.WithLogger(log)
	kit.Fatal(t, sqlstore.Migrate(t.Context(), db, dialect.PostgreSQL, tables))
	engines := map[string]*idem.Engine{}
	add := func(name string, e *idem.Engine, err error) {
		t.Helper()
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = e.Close(context.Background()) })
		engines[name] = e
	}
	inZooKeeper := func(name string, opts ...idem.SetupOption) {
		t.Helper()
		e, err := idemzk.New(t.Context(), ensemble, client, append(opts, redisstore.WithPrefix(testserver.KeyPrefix(t)))...)
		add(name, e, err)
	}
	e, err := sqlstore.Join(t.Context(), db, dialect.PostgreSQL, tables, logger)
	add("joined with PostgreSQL", e, err)
	inZooKeeper("ZooKeeper with durable markers, Redis with a witness", idemzk.WithDurableMarkers(time.Hour))
	inZooKeeper("ZooKeeper, Redis with a witness and replicas", idemzk.WithoutDurableMarkers(), redisstore.WithReplicas(1, time.Second))
	inZooKeeper("ZooKeeper, Redis with a witness", idemzk.WithoutDurableMarkers())
	e, err = idem.New(zk.Locker(), records)
	add("ZooKeeper, Redis", e, err)
	e, err = idemredis.New(t.Context(), client, idemredis.WithLogger(log), redisstore.WithPrefix(testserver.KeyPrefix(t)))
	add("Redis alone", e, err)
	e, err = idemsql.New(t.Context(), db, dialect.PostgreSQL, tables, idemsql.WithLogger(log))
	add("locks and records in PostgreSQL", e, err)
	e, err = idem.New(memorylock.New(), memorystore.New())
	add("one process", e, err)
	return engines
}

// inOrder are the set-ups of the table, each with less than the one before.
var inOrder = []string{"joined with PostgreSQL", "ZooKeeper with durable markers, Redis with a witness", "ZooKeeper, Redis with a witness and replicas", "ZooKeeper, Redis with a witness", "ZooKeeper, Redis",
	"locks and records in PostgreSQL", "Redis alone", "one process"}

// The table of docs/guarantees.md is what the engines say. The guarantee falls as parts are taken away.
func TestGuaranteesAreThoseOfTheDocument(t *testing.T) {
	t.Parallel()
	engines := guaranteed(t)
	resolved := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true,
		InDoubt: idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.StillUnknown(), nil })}
	var table strings.Builder
	table.WriteString("| set-up | in the transaction | at a resource that checks the fence | anywhere else |\n|---|---|---|---|\n")
	for _, name := range inOrder {
		g, err := engines[name].Guarantee(resolved)
		kit.Fatal(t, err)
		fmt.Fprintf(&table, "| %s | %s | %s | %s |\n", name, g.Of(guarantee.InTransaction).Once, g.Of(guarantee.Fenced).Once, g.Of(guarantee.Elsewhere).Once)
	}
	text, err := os.ReadFile("../../docs/guarantees.md")
	kit.Fatal(t, err)
	if !strings.Contains(string(text), table.String()) {
		t.Errorf("docs/guarantees.md has another table than\n%s", table.String())
	}
	for need, enough := range map[guarantee.Need]int{ // the set-ups from that number on give less
		guarantee.ExactlyOnceInTransaction: 1,
		guarantee.AtMostOnceThroughLoss:    2,
		{Effect: guarantee.Fenced, Through: guarantee.Repeat | guarantee.Crash | guarantee.ServerLoss}:                 3,
		{Effect: guarantee.Fenced, Through: guarantee.Repeat | guarantee.Crash | guarantee.ClockStep | guarantee.Loss}: 4,
		{Effect: guarantee.Fenced, Through: guarantee.Repeat | guarantee.Crash | guarantee.ClockStep}:                  5,
		guarantee.AtMostOnceThroughPause: 7,
	} {
		for i, name := range inOrder {
			p := resolved
			p.Name, p.Require = need.String(), need
			_, err := engines[name].Fit(p)
			joined := i == 0 && need.Effect != guarantee.InTransaction // it has no fence
			if (err == nil) != (i < enough && !joined) {
				t.Errorf("%s, with %s: Fit() = %v", name, need, err)
			}
		}
	}
}

// Without the resolver the outcome of a crash waits for a person, and without the fence a process that was paused may go on.
func TestGuaranteeFallsWithoutResolverAndFence(t *testing.T) {
	t.Parallel()
	engine := guaranteed(t)["ZooKeeper with durable markers, Redis with a witness"]
	policy := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, Require: guarantee.Need{Effect: guarantee.Fenced, Through: guarantee.All, NoDoubt: true},
		InDoubt: idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.StillUnknown(), nil })}
	_, err := engine.Fit(policy)
	kit.Fatal(t, err)
	policy.Name, policy.InDoubt = "no resolver", idem.LeaveUnknown()
	if _, err := engine.Fit(policy); err == nil || !strings.Contains(err.Error(), "in doubt after an outage, a crash, a pause: set InDoubt to AskResolver") {
		t.Errorf("Fit() = %v without a resolver", err)
	}
	policy.Name, policy.Require = "no fence", guarantee.Need{Effect: guarantee.Elsewhere, Through: guarantee.All}
	if _, err := engine.Fit(policy); err == nil || !strings.Contains(err.Error(), "let the resource check the fence") {
		t.Errorf("Fit() = %v without a fence", err)
	}
}
