package load

import (
	"context"
	"database/sql"
	"math/rand/v2"

	"github.com/gin-gonic/gin"
	_ "github.com/go-sql-driver/mysql" // the driver "mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib" // and the driver "pgx"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

// accounts is the number of accounts. Each payer has one payee, so no two payments wait for each
// other in a circle.
const accounts = 100_000

// business is a pool of connections to a database with accounts. Each case has a database of its own.
type business struct {
	db      *sql.DB
	dialect dialect.Dialect
	steps   [3]string // of a payment: two with one account, and one with both
}

var postgresSetup = []string{
	"CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
	"CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, payer bigint, payee bigint, amount bigint)",
	"INSERT INTO accounts SELECT i, 1000000 FROM generate_series(1, $1::int) i",
}

var mariadbSetup = []string{
	"CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL)",
	"CREATE TABLE payments (id bigint AUTO_INCREMENT PRIMARY KEY, payer bigint, payee bigint, amount bigint)",
	"INSERT INTO accounts SELECT seq, 1000000 FROM seq_1_to_1000000 WHERE seq <= ?",
}

func (s *service) postgres(ctx context.Context) (*business, error) {
	db, err := open("pgx", s.config.Postgres)
	if err != nil {
		return nil, err
	}
	return s.postgresOver(ctx, db)
}

// pipelined is a pool whose connections send statements together with BEGIN and COMMIT.
func (s *service) pipelined(ctx context.Context) (*business, error) {
	db, err := pgxstore.Open(s.config.Postgres)
	if err != nil {
		return nil, err
	}
	return s.postgresOver(ctx, sized(db))
}

func (s *service) postgresOver(ctx context.Context, db *sql.DB) (*business, error) {
	return s.business(ctx, postgresSetup, business{db: db, dialect: dialect.PostgreSQL, steps: [3]string{
		"UPDATE accounts SET balance = balance - 1250 WHERE id = $1",
		"UPDATE accounts SET balance = balance + 1250 WHERE id = $1",
		"INSERT INTO payments (payer, payee, amount) VALUES ($1, $2, 1250)",
	}})
}

func (s *service) mariadb(ctx context.Context) (*business, error) {
	db, err := open("mysql", s.config.MariaDB)
	if err != nil {
		return nil, err
	}
	return s.mariadbOver(ctx, db)
}

// strict is a pool whose connections begin and commit with other statements.
func (s *service) strict(ctx context.Context) (*business, error) {
	db, err := sqlstore.OpenStrict("mysql", s.config.MariaDB)
	if err != nil {
		return nil, err
	}
	return s.mariadbOver(ctx, sized(db))
}

func (s *service) mariadbOver(ctx context.Context, db *sql.DB) (*business, error) {
	return s.business(ctx, mariadbSetup, business{db: db, dialect: dialect.MySQL, steps: [3]string{
		"UPDATE accounts SET balance = balance - 1250 WHERE id = ?",
		"UPDATE accounts SET balance = balance + 1250 WHERE id = ?",
		"INSERT INTO payments (payer, payee, amount) VALUES (?, ?, 1250)",
	}})
}

func open(driver, name string) (*sql.DB, error) {
	db, err := sql.Open(driver, name)
	if err != nil {
		return nil, err
	}
	return sized(db), nil
}

func sized(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(poolSize)
	db.SetMaxIdleConns(poolSize)
	return db
}

// business makes the tables. The service closes the pool.
func (s *service) business(ctx context.Context, setup []string, b business) (*business, error) {
	s.onClose(func(context.Context) error { return b.db.Close() })
	for i, text := range setup {
		var args []any
		if i == len(setup)-1 {
			args = []any{accounts}
		}
		if _, err := b.db.ExecContext(ctx, text, args...); err != nil {
			return nil, err
		}
	}
	return &b, nil
}

// pgxPool is for handlers that use pgx without database/sql. The two share their connections, and database/sql keeps none of
// them idle, because the pool could not use those.
func (s *service) pgxPool(ctx context.Context) (*business, *pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(s.config.Postgres)
	if err != nil {
		return nil, nil, err
	}
	config.MaxConns = poolSize
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, nil, err
	}
	s.onClose(func(context.Context) error {
		pool.Close()
		return nil
	})
	b, err := s.postgresOver(ctx, stdlib.OpenDBFromPool(pool))
	return b, pool, err
}

// executor runs a statement in a transaction.
type executor func(ctx context.Context, text string, args ...any) error

func execute(tx *sql.Tx) executor {
	return func(ctx context.Context, text string, args ...any) error {
		_, err := tx.ExecContext(ctx, text, args...)
		return err
	}
}

func executePgx(tx pgx.Tx) executor {
	return func(ctx context.Context, text string, args ...any) error {
		_, err := tx.Exec(ctx, text, args...)
		return err
	}
}

// transfer is the payment of all flows with a database.
func (b *business) transfer(ctx context.Context, do executor) error {
	payer := rand.IntN(accounts/2) + 1 //nolint:gosec // spreads the payments, no secret
	payee := payer + accounts/2
	for i, args := range [][]any{{payer}, {payee}, {payer, payee}} {
		if err := do(ctx, b.steps[i], args...); err != nil {
			return err
		}
	}
	return nil
}

// businessFlow is the business transaction alone. A retry pays again.
func businessFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, err := s.postgres(ctx)
	if err != nil {
		return nil, err
	}
	return b.alone(s), nil
}

// businessMariaDBFlow is businessFlow on MariaDB.
func businessMariaDBFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, err := s.mariadb(ctx)
	if err != nil {
		return nil, err
	}
	return b.alone(s), nil
}

func (b *business) alone(s *service) []gin.HandlerFunc {
	return []gin.HandlerFunc{func(c *gin.Context) {
		body := s.pay(c)
		tx, err := b.db.BeginTx(c.Request.Context(), nil)
		if err == nil {
			defer func() { _ = tx.Rollback() }()
			err = b.transfer(c.Request.Context(), execute(tx))
		}
		if err == nil {
			err = tx.Commit()
		}
		answer(c, body, err)
	}}
}

// businessPgxFlow is businessFlow with pgx.
func businessPgxFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, pool, err := s.pgxPool(ctx)
	return []gin.HandlerFunc{func(c *gin.Context) {
		body := s.pay(c)
		err := pgx.BeginFunc(c.Request.Context(), pool, func(tx pgx.Tx) error {
			return b.transfer(c.Request.Context(), executePgx(tx))
		})
		answer(c, body, err)
	}}, err
}
