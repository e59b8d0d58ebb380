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

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// guaranteed are engines on real servers, by the names of the table.
func guaranteed(t *testing.T) map[string]*idem.Engine {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	zk, err := zookeeper.Open(t.Context(), zookeeper.Config{Servers: testserver.SharedZooKeeper(t), Chroot: testserver.Chroot(t), Logger: log})
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = zk.Close(context.Background()) })
	url := testserver.SharedRedis(t)
	redisLock, records, _ := inRedis(t, url, nil)
	_, witnessed, _ := inRedis(t, url, nil, redisstore.WithWitness(recipes.Registers(zk)))
	_, replicated, _ := inRedis(t, url, nil, redisstore.WithWitness(recipes.Registers(zk)), redisstore.WithReplicas(1, time.Second))
	db, err := sql.Open("pgx", testserver.SharedPostgres(t))
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(4)
	prefix := fmt.Sprintf("guaranteed_%x_", rand.Uint32())
	kit.Fatal(t, sqlstore.Migrate(t.Context(), db, dialect.PostgreSQL, sqlstore.WithTablePrefix(prefix)))
	rows, err := sqlstore.New(t.Context(), db, dialect.PostgreSQL, sqlstore.WithTablePrefix(prefix), sqlstore.WithLogger(log), sqlstore.WithExpiry(0))
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = rows.Close() })
	rowLock, err := sqllock.New(t.Context(), db, dialect.PostgreSQL, sqllock.WithTablePrefix(prefix), sqllock.WithLogger(log))
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = rowLock.Close(context.Background()) })
	joined, err := rows.Joined()
	kit.Fatal(t, err)
	engines := map[string]*idem.Engine{}
	add := func(name string, e *idem.Engine, err error) {
		t.Helper()
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = e.Close(context.Background()) })
		engines[name] = e
	}
	with := func(name string, l driver.Locker, s driver.Store) {
		e, err := idem.New(l, s)
		add(name, e, err)
	}
	j, err := idem.NewJoined(joined)
	add("joined with PostgreSQL", j, err)
	with("ZooKeeper with durable markers, Redis with a witness", zk.Locker(zookeeper.WithDurableMarkers()), witnessed)
	with("ZooKeeper, Redis with a witness and replicas", zk.Locker(), replicated)
	with("ZooKeeper, Redis with a witness", zk.Locker(), witnessed)
	with("ZooKeeper, Redis", zk.Locker(), records)
	with("Redis alone", redisLock, records)
	with("locks and records in PostgreSQL", rowLock, rows)
	with("one process", memorylock.New(), memorystore.New())
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
