package ownhandlers

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/gin-gonic/gin"
)

// BankPayments answers a route whose payments also call a bank. No transaction is open meanwhile. A row with the time
// of its lock stands for the request under way, and after 90 seconds another request takes it over.
//
// The bank has to honour the key. With another one, package crashtest finds two charges at "POST bank/captures", killed after.
type BankPayments struct {
	DB *sql.DB
	// Charge calls the bank. It passes the key on, so that a bank that knows idempotency keys charges once. A refusal of the
	// bank is an Answer. After an error the client may send the request again, and then the bank is called again.
	Charge func(ctx context.Context, key string, order []byte) (Answer, error)
	// Record writes what the bank answered in tx.
	Record func(ctx context.Context, tx *sql.Tx, order []byte, a Answer) error
	// TakeOver is the age of a lock that another request takes over, 90 seconds by default.
	TakeOver time.Duration
}

// Handle is the handler of the route.
func (p *BankPayments) Handle(c *gin.Context) {
	if req, ok := read(c); ok {
		a, err := p.once(c.Request.Context(), req)
		reply(c, a, err)
	}
}

func (p *BankPayments) once(ctx context.Context, req request) (Answer, error) {
	if claimed, err := p.claim(ctx, req); err != nil {
		return Answer{}, err
	} else if !claimed {
		return stored(ctx, p.DB, req)
	}
	a, err := p.Charge(ctx, req.key, req.body)
	if err != nil {
		return Answer{}, errors.Join(errBank, err, p.unlock(context.WithoutCancel(ctx), req))
	}
	tx, err := p.DB.BeginTx(ctx, nil)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = tx.Rollback() }()
	if err := p.Record(ctx, tx, req.body, a); err != nil {
		return Answer{}, err
	}
	return a, finish(ctx, tx, req, a)
}

// claim inserts the key, or takes over that of a request that failed or crashed.
func (p *BankPayments) claim(ctx context.Context, req request) (bool, error) {
	claimed, err := p.DB.ExecContext(ctx, `
		INSERT INTO idempotency_keys AS k (key, request_hash, locked_at) VALUES ($1, $2, now())
		ON CONFLICT (key) DO UPDATE SET locked_at = now()
		WHERE k.status IS NULL AND k.request_hash = EXCLUDED.request_hash
			AND (k.locked_at IS NULL OR k.locked_at < now() - make_interval(secs => $3))`,
		req.key, req.hash, cmp.Or(p.TakeOver, 90*time.Second).Seconds())
	if err != nil {
		return false, err
	}
	n, err := claimed.RowsAffected()
	return n == 1, err
}

// unlock lets the next request with the key go on at once.
func (p *BankPayments) unlock(ctx context.Context, req request) error {
	_, err := p.DB.ExecContext(ctx, `UPDATE idempotency_keys SET locked_at = NULL WHERE key = $1`, req.key)
	return err
}
