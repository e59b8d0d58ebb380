package sqlstore

import (
	"context"
	cryptorand "crypto/rand"
	"database/sql"
	"math/rand/v2"
	"runtime"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// benchConnections is how many requests run at once.
const benchConnections = 16

// payment is a business transaction of three statements.
func payment(ctx context.Context, tx *sql.Tx, from, to int64) error {
	for _, step := range []struct {
		text string
		args []any
	}{
		{"UPDATE accounts SET balance = balance - 1 WHERE id = $1", []any{from}},
		{"UPDATE accounts SET balance = balance + 1 WHERE id = $1", []any{to}},
		{"INSERT INTO payments (payer, payee, amount) VALUES ($1, $2, 1)", []any{from, to}},
	} {
		if _, err := tx.ExecContext(ctx, step.text, step.args...); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkJoined compares a payment in a joined transaction with the same payment alone, on
// PostgreSQL.
func BenchmarkJoined(b *testing.B) {
	pg := backends()[0]
	p := pg.migrated(b)
	p.write.SetMaxOpenConns(benchConnections + 1)
	p.write.SetMaxIdleConns(benchConnections + 1)
	mustExec(b, p.write, "CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)")
	mustExec(b, p.write, "CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payer bigint, payee bigint, amount bigint)")
	mustExec(b, p.write, "INSERT INTO accounts SELECT i, 1000000 FROM generate_series(1, 100000) i")
	joined, err := pg.store(b, p).Joined()
	if err != nil {
		b.Fatal(err)
	}
	engine, err := idem.NewJoined(joined)
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	// Each payer has one payee, and no two payments wait for each other in a circle.
	parties := func() (from, to int64) {
		from = rand.Int64N(50_000) + 1
		return from, from + 50_000
	}
	run := func(name string, pay func() error) {
		b.Run(name, func(b *testing.B) {
			b.SetParallelism((benchConnections + runtime.GOMAXPROCS(0) - 1) / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if err := pay(); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
	alone := func() error {
		tx, err := p.write.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		from, to := parties()
		if err := payment(ctx, tx, from, to); err != nil {
			return err
		}
		return tx.Commit()
	}
	policy := idem.Policy{AllowGlobalKeys: true}
	operation := func(key string) idem.Operation {
		return idem.Operation{Key: idem.Key(key), Policy: &policy, Fingerprint: func(v uint8) (idem.Fingerprint, error) {
			return idem.NewFingerprint(v, "pay", "100")
		}}
	}
	handler := func(ctx context.Context) (idem.Response, error) {
		tx, err := Tx(ctx)
		if err != nil {
			return idem.Response{}, err
		}
		from, to := parties()
		return idem.Response{Body: []byte(`{"id":"pay_1","status":"succeeded"}`)}, payment(ctx, tx, from, to)
	}
	run("alone", alone)
	run("joined", func() error {
		_, err := engine.Do(ctx, operation(cryptorand.Text()), handler)
		return err
	})
	if _, err := engine.Do(ctx, operation("replayed"), handler); err != nil {
		b.Fatal(err)
	}
	run("replay", func() error {
		_, err := engine.Do(ctx, operation("replayed"), handler)
		return err
	})
}
