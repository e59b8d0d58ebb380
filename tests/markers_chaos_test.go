package tests

import (
	"cmp"
	"database/sql"
	"fmt"
	"maps"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// TestWipedRedisUnderChaos kills, pauses and partitions instances that leave durable
// markers, and wipes their Redis, all at random while clients pay and repeat their
// keys. No key is paid twice, and no client is told of a payment and then of another.
// An outcome may become unknown. One run asks the ledger about interrupted attempts,
// the next one has no resolver.
//
// IDEMKEEPER_CHAOS_RUNS and IDEMKEEPER_CHAOS_RUN say how often and for how long:
// `make chaos` sets them. It prints lines "FIGURE name value", summed over the runs.
func TestWipedRedisUnderChaos(t *testing.T) {
	runs, err := strconv.Atoi(cmp.Or(os.Getenv("IDEMKEEPER_CHAOS_RUNS"), "1"))
	if err != nil {
		t.Fatalf("IDEMKEEPER_CHAOS_RUNS: %v", err)
	}
	lasts, err := time.ParseDuration(cmp.Or(os.Getenv("IDEMKEEPER_CHAOS_RUN"), "20s"))
	if err != nil {
		t.Fatalf("IDEMKEEPER_CHAOS_RUN: %v", err)
	}
	seed := randomSeed(t)
	figures := map[string]int{}
	for i := range runs {
		t.Run(fmt.Sprint("run ", i+1), func(t *testing.T) {
			c := newChaos(t, seed+uint64(i))
			c.lasts, c.workers, c.pause, c.wiped = lasts, 32, 100*time.Millisecond, true
			resolver := []string{"ledger", "none"}[i%2]
			c.opts = []launchOption{withMarkers("--database", chaosLedger(t), "--resolver", resolver), withLatency(40 * time.Millisecond)}
			c.run()
			_, _ = fmt.Fprintf(os.Stdout, "run %d: seed %d, resolver %s, %d keys, %d payments, %d duplicates\n", i+1, c.seed, resolver, c.keys.Load(), c.paid, c.duplicates)
			figures["runs"]++
			figures["keys"] += int(c.keys.Load())
			figures["payments"] += c.paid
			figures["duplicate-payments"] += c.duplicates
			figures["wrong-answers"] += len(c.wrong)
			for name, n := range c.faults {
				figures["fault-"+name] += n
			}
			for name, n := range c.answers {
				_, code, _ := strings.Cut(name, " ")
				figures["answer-"+code] += n
			}
		})
	}
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		_, _ = fmt.Fprintf(os.Stdout, "FIGURE markers-%s %d\n", name, figures[name])
	}
}

// chaosLedger is a database of PostgreSQL with a schema of the run's own.
func chaosLedger(t *testing.T) string {
	t.Helper()
	base := testserver.SharedPostgres(t)
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", base)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	schema := "chaos_" + idem.NewNonce().String()
	if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", schema)
	u.RawQuery = q.Encode()
	return u.String()
}
