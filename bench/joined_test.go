package bench

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // driver "pgx"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// joinedConnections is how many payments run at once, each on a connection of its own.
const joinedConnections = 16

// BenchmarkJoined compares a payment in a joined transaction with the same payment alone, and a
// replay with one read by primary key. PostgreSQL syncs to the disk.
func BenchmarkJoined(b *testing.B) {
	db, err := sql.Open("pgx", testserver.StartPostgres(b).URL())
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(joinedConnections + 1)
	db.SetMaxIdleConns(joinedConnections + 1)
	for _, statement := range []string{
		"CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
		"CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payer bigint, payee bigint, amount bigint)",
		"INSERT INTO accounts SELECT i, 1000000 FROM generate_series(1, 100000) i",
	} {
		if _, err := db.Exec(statement); err != nil {
			b.Fatal(err)
		}
	}
	engine := newJoinedEngine(b, db)
	var handled runs
	do := func(ctx context.Context, key string) error {
		op := idem.Operation{Key: idem.Key(key), Policy: &policy, Fingerprint: func(v uint8) (driver.Fingerprint, error) {
			return idem.NewFingerprint(v, "pay", order)
		}}
		_, err := engine.Do(ctx, op, func(ctx context.Context) (idem.Response, error) {
			handled.Add(1)
			tx, err := sqlstore.Tx(ctx)
			if err != nil {
				return idem.Response{}, err
			}
			return idem.Response{Body: []byte(receipt)}, pay(ctx, tx)
		})
		return err
	}
	alone := func(ctx context.Context) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := pay(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	}
	read := func(ctx context.Context) error {
		var balance int64
		return db.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = $1", rand.Int64N(100_000)+1).Scan(&balance)
	}
	keys := newKeys()
	b.Run("fresh", func(b *testing.B) {
		handled.Store(0)
		n := takeTurns(b, func(ctx context.Context) error { return do(ctx, keys.next()) }, alone)
		handled.want(b, n)
	})
	if err := do(b.Context(), keys.same()); err != nil {
		b.Fatal(err)
	}
	b.Run("replay", func(b *testing.B) {
		handled.Store(0)
		takeTurns(b, func(ctx context.Context) error { return do(ctx, keys.same()) }, read)
		handled.want(b, 0)
	})
}

func newJoinedEngine(b *testing.B, db *sql.DB) *idem.Engine {
	b.Helper()
	if err := sqlstore.Migrate(b.Context(), db, dialect.PostgreSQL); err != nil {
		b.Fatal(err)
	}
	store, err := sqlstore.New(b.Context(), db, dialect.PostgreSQL)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	joined, err := store.Joined()
	if err != nil {
		b.Fatal(err)
	}
	engine, err := idem.NewJoined(joined)
	if err != nil {
		b.Fatal(err)
	}
	return engine
}

// pay is a business transaction of three statements. Each payer has one payee, so no two payments
// wait for each other in a circle.
func pay(ctx context.Context, tx *sql.Tx) error {
	from := rand.Int64N(50_000) + 1
	to := from + 50_000
	if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance - 1 WHERE id = $1", from); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = balance + 1 WHERE id = $1", to); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, "INSERT INTO payments (payer, payee, amount) VALUES ($1, $2, 1)", from, to)
	return err
}

// takeTurns has requests through the engine and those without it take turns. Each request has a
// context that can be cancelled, as those of net/http have. takeTurns reports what a
// request through the engine takes as ns/op, beside one without it and the ratio of the two. It
// returns how many went through the engine.
func takeTurns(b *testing.B, joined, alone func(context.Context) error) int {
	b.Helper()
	const perConnection = 50
	turn := func(request func(context.Context) error) time.Duration {
		began := time.Now()
		var clients sync.WaitGroup
		for range joinedConnections {
			clients.Go(func() {
				for range perConnection {
					ctx, cancel := context.WithCancel(b.Context())
					if err := request(ctx); err != nil {
						b.Error(err)
					}
					cancel()
				}
			})
		}
		clients.Wait()
		return time.Since(began)
	}
	turn(joined) // opens the connections and prepares the statements
	turn(alone)
	var withRecord, without time.Duration
	for b.Loop() {
		withRecord += turn(joined)
		without += turn(alone)
	}
	n := float64(b.N * perConnection * joinedConnections)
	b.ReportMetric(float64(withRecord.Nanoseconds())/n, "ns/op")
	b.ReportMetric(float64(without.Nanoseconds())/n, "alone-ns/op")
	b.ReportMetric(float64(withRecord)/float64(without), "joined-by-alone")
	return (b.N + 1) * perConnection * joinedConnections
}
