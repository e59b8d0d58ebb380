package load

import (
	"context"
	"database/sql"
	"math/rand/v2"

	"github.com/gin-gonic/gin"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// accounts is the number of accounts. Each payer has one payee, so no two payments wait for each
// other in a circle.
const accounts = 100_000

// transfer is the business transaction of both flows.
func transfer(ctx context.Context, tx *sql.Tx) error {
	payer := rand.IntN(accounts/2) + 1 //nolint:gosec // spreads the payments, no secret
	payee := payer + accounts/2
	for _, step := range []struct {
		text string
		args []any
	}{
		{"UPDATE accounts SET balance = balance - 1250 WHERE id = $1", []any{payer}},
		{"UPDATE accounts SET balance = balance + 1250 WHERE id = $1", []any{payee}},
		{"INSERT INTO payments (payer, payee, amount) VALUES ($1, $2, 1250)", []any{payer, payee}},
	} {
		if _, err := tx.ExecContext(ctx, step.text, step.args...); err != nil {
			return err
		}
	}
	return nil
}

// businessFlow is the business transaction alone. A retry pays again.
func businessFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	return []gin.HandlerFunc{func(c *gin.Context) {
		body := s.pay(c)
		tx, err := db.BeginTx(c.Request.Context(), nil)
		if err == nil {
			defer func() { _ = tx.Rollback() }()
			err = transfer(c.Request.Context(), tx)
		}
		if err == nil {
			err = tx.Commit()
		}
		answer(c, body, err)
	}}, nil
}

// joinedFlow is the same transaction, and the record commits with it.
func joinedFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	db, err := s.database(ctx)
	if err != nil {
		return nil, err
	}
	if err := sqlstore.Migrate(ctx, db, dialect.PostgreSQL); err != nil {
		return nil, err
	}
	store, err := sqlstore.New(ctx, db, dialect.PostgreSQL, sqlstore.WithLogger(silent))
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { return store.Close() })
	joined, err := store.Joined()
	if err != nil {
		return nil, err
	}
	engine, err := idem.NewJoined(joined, patient...)
	if err != nil {
		return nil, err
	}
	s.onClose(engine.Close)
	middleware, err := idemgin.New(engine, policy)
	return []gin.HandlerFunc{middleware, func(c *gin.Context) {
		body := s.pay(c)
		tx, err := sqlstore.Tx(c)
		if err == nil {
			err = transfer(c, tx)
		}
		answer(c, body, err)
	}}, err
}

// database is a pool with the tables of the business. Each case has a database of its own.
func (s *service) database(ctx context.Context) (*sql.DB, error) {
	db, err := sql.Open("pgx", s.config.Postgres)
	if err != nil {
		return nil, err
	}
	s.onClose(func(context.Context) error { return db.Close() })
	db.SetMaxOpenConns(sqlConnections + 1)
	db.SetMaxIdleConns(sqlConnections + 1)
	_, err = db.ExecContext(ctx, `
		CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
		CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payer bigint, payee bigint, amount bigint)`)
	if err == nil {
		_, err = db.ExecContext(ctx, "INSERT INTO accounts SELECT i, 1000000 FROM generate_series(1, $1::int) i", accounts)
	}
	return db, err
}
