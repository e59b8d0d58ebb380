package ownhandlers

import (
	"context"
	"database/sql"

	"github.com/gin-gonic/gin"
)

// Payments answers a route whose payments only write to the database. Key, payment and answer commit together.
type Payments struct {
	DB *sql.DB
	// Pay writes the payment in tx and returns the answer. After an error nothing is kept, and the client may
	// send the request again.
	Pay func(ctx context.Context, tx *sql.Tx, order []byte) (Answer, error)
}

// Handle is the handler of the route.
func (p *Payments) Handle(c *gin.Context) {
	if req, ok := read(c); ok {
		a, err := p.once(c.Request.Context(), req)
		reply(c, a, err)
	}
}

func (p *Payments) once(ctx context.Context, req request) (Answer, error) {
	tx, err := p.DB.BeginTx(ctx, nil)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = tx.Rollback() }()

	// A duplicate waits here until the transaction of the first request has ended.
	inserted, err := tx.ExecContext(ctx, `INSERT INTO idempotency_keys (key, request_hash) VALUES ($1, $2) ON CONFLICT DO NOTHING`,
		req.key, req.hash)
	if err != nil {
		return Answer{}, err
	}
	if n, err := inserted.RowsAffected(); err != nil {
		return Answer{}, err
	} else if n == 0 {
		return stored(ctx, tx, req)
	}
	a, err := p.Pay(ctx, tx, req.body)
	if err != nil {
		return Answer{}, err
	}
	return a, finish(ctx, tx, req, a)
}
