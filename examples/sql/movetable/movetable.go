// Package movetable shows how a service moves from an idempotency table of its own to a joined
// store, with instances of both kinds running at once and without a second payment.
//
//	Before  the handler claims the key in its own table, in its own transaction
//	During  the handler claims it there too, in the joined transaction: the unique key of the
//	        table still decides between old and new instances
//	After   all instances are new: the handler only looks whether the table has an answer
//
// When the last rows of the table have expired, the service drops the table and what reads it.
package movetable

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/idemkeeper/idemkeeper/idem"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// Table is what many services have written by hand.
const Table = `CREATE TABLE idempotency_keys (
	merchant     text NOT NULL,
	key          text NOT NULL,
	request_hash text NOT NULL,
	status       int,
	body         text,
	created_at   timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (merchant, key))`

// Before is the handler that the service has today.
func Before(db *sql.DB) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := read(r)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		tx, err := db.BeginTx(r.Context(), nil)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		defer tx.Rollback() //nolint:errcheck // after a commit it does nothing
		a, err := claim(r.Context(), tx, p)
		if err == nil && a == nil {
			if a, err = pay(r.Context(), tx, p); err == nil {
				err = keep(r.Context(), tx, p, a)
			}
		}
		if err == nil {
			err = tx.Commit()
		}
		write(w, a, err)
	})
}

// During replaces Before, one instance after the other, behind the middleware. A refusal commits
// too, so that old instances find it.
func During() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := read(r)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		tx, err := sqlstore.Tx(r.Context())
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		idem.KeepWrites(r.Context())
		a, err := claim(r.Context(), tx, p)
		if err == nil && a == nil {
			if a, err = pay(r.Context(), tx, p); err == nil {
				err = keep(r.Context(), tx, p, a)
			}
		}
		write(w, a, err)
	})
}

// After replaces During once no instance runs Before any more.
func After() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, err := read(r)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		tx, err := sqlstore.Tx(r.Context())
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		a, err := look(r.Context(), tx, p)
		if errors.Is(err, sql.ErrNoRows) {
			a, err = pay(r.Context(), tx, p)
		}
		write(w, a, err)
	})
}

// payment is a request.
type payment struct {
	Payer  string `json:"payer"`
	Amount int64  `json:"amount"`

	merchant, key, hash string
}

func read(r *http.Request) (p payment, err error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return p, err
	}
	sum := sha256.Sum256(body)
	p.merchant, p.key, p.hash = "merchant", r.Header.Get("Idempotency-Key"), hex.EncodeToString(sum[:])
	return p, json.Unmarshal(body, &p)
}

// answer is what the table stores.
type answer struct {
	status int
	body   string
}

func write(w http.ResponseWriter, a *answer, err error) {
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.WriteHeader(a.status)
	_, _ = io.WriteString(w, a.body) //nolint:gosec // the JSON that the handler made
}

// claim inserts the key. It returns the answer of an earlier request instead, if there is one.
func claim(ctx context.Context, tx *sql.Tx, p payment) (*answer, error) {
	res, err := tx.ExecContext(ctx, "INSERT INTO idempotency_keys (merchant, key, request_hash) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
		p.merchant, p.key, p.hash)
	if err != nil {
		return nil, err
	}
	if n, err := res.RowsAffected(); n == 1 || err != nil {
		return nil, err
	}
	return look(ctx, tx, p)
}

// look returns the answer in the table. The error is sql.ErrNoRows if the key is not there.
func look(ctx context.Context, tx *sql.Tx, p payment) (*answer, error) {
	var a answer
	var hash string
	err := tx.QueryRowContext(ctx, "SELECT request_hash, status, body FROM idempotency_keys WHERE merchant = $1 AND key = $2",
		p.merchant, p.key).Scan(&hash, &a.status, &a.body)
	if err == nil && hash != p.hash {
		return &answer{http.StatusUnprocessableEntity, "the key belongs to another request"}, nil
	}
	return &a, err
}

// keep stores the answer with the claimed key.
func keep(ctx context.Context, tx *sql.Tx, p payment, a *answer) error {
	_, err := tx.ExecContext(ctx, "UPDATE idempotency_keys SET status = $3, body = $4 WHERE merchant = $1 AND key = $2",
		p.merchant, p.key, a.status, a.body)
	return err
}

// pay writes the payment, or refuses it.
func pay(ctx context.Context, tx *sql.Tx, p payment) (*answer, error) {
	if p.Amount > 1000 {
		return &answer{http.StatusPaymentRequired, "over the limit"}, nil
	}
	if _, err := tx.ExecContext(ctx, "INSERT INTO payments (id, payer, amount) VALUES (gen_random_uuid(), $1, $2)", p.Payer, p.Amount); err != nil {
		return nil, err
	}
	return &answer{http.StatusCreated, "paid"}, nil
}
