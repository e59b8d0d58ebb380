package ownhandlers

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/crashtest"
)

// onPostgres is a subject whose handler writes into the table payments.
func onPostgres(handler func(env *crashtest.Env, db *sql.DB) gin.HandlerFunc) crashtest.Subject {
	var ledger *sql.DB
	return crashtest.Subject{
		Setup: func(tb testing.TB) map[string]string {
			db, url := setupNamed(tb)
			ledger = db
			return map[string]string{"database": url}
		},
		Serve: func(_ context.Context, env *crashtest.Env) error {
			db, err := env.OpenDB("pgx", env.Setting("database"))
			if err != nil {
				return err
			}
			router := gin.New()
			router.POST("/pay", handler(env, db))
			l, err := env.Listen()
			if err != nil {
				return err
			}
			return http.Serve(l, router)
		},
		Request: pay,
		Effects: func(ctx context.Context, key string) (n int, err error) {
			err = ledger.QueryRowContext(ctx, "SELECT count(*) FROM payments WHERE key = $1", key).Scan(&n)
			return n, err
		},
	}
}

func pay(ctx context.Context, c crashtest.Call) (crashtest.Answer, error) {
	amount := 1250
	if c.Other {
		amount = 99
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL("/pay"), strings.NewReader(fmt.Sprintf(`{"order":%q,"amount":%d}`, c.Key, amount)))
	if err != nil {
		return crashtest.Answer{}, err
	}
	req.Header.Set("Idempotency-Key", c.Key)
	return crashtest.Send(req)
}

func TestPaymentsSurvive(t *testing.T) {
	crashtest.Run(t, onPostgres(func(_ *crashtest.Env, db *sql.DB) gin.HandlerFunc {
		p := &Payments{DB: db, Pay: func(ctx context.Context, tx *sql.Tx, order []byte) (Answer, error) {
			var id int64
			err := tx.QueryRowContext(ctx, "INSERT INTO payments (key, amount) VALUES ($1::json->>'order', ($1::json->>'amount')::bigint) RETURNING amount", string(order)).Scan(&id)
			return Answer{http.StatusCreated, fmt.Appendf(nil, `{"paid":%d}`, id)}, err
		}}
		return p.Handle
	}))
}
