package ownhandlers

import (
	"context"
	"crypto/sha256"
	"database/sql"
	_ "embed"
	"errors"
	"io"
	"net/http"

	"github.com/gin-gonic/gin"
)

//go:embed schema.sql
var schema string

// Migrate makes the table of keys.
func Migrate(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, schema)
	return err
}

// Answer is what the client gets, now and for each repeat. Its body is JSON.
type Answer struct {
	Status int
	Body   []byte
}

// Errors with a status of their own. Every other error is a 500.
var (
	errOtherRequest = errors.New("the key was used for another request")
	errInProgress   = errors.New("a request with this key is in progress")
	errBank         = errors.New("the bank did not answer, send the request again")
)

const (
	longestKey  = 255
	longestBody = 1 << 20
)

// request is what both handlers read first.
type request struct {
	key  string
	hash []byte
	body []byte
}

func read(c *gin.Context) (request, bool) {
	key := c.GetHeader("Idempotency-Key")
	if key == "" || len(key) > longestKey {
		c.AbortWithStatusJSON(http.StatusBadRequest, gin.H{"error": "the header Idempotency-Key is missing or too long"})
		return request{}, false
	}
	body, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, longestBody))
	if err != nil {
		c.AbortWithStatusJSON(http.StatusBadRequest, gin.H{"error": "the body cannot be read"})
		return request{}, false
	}
	return request{key, hashOf(body), body}, true
}

func hashOf(body []byte) []byte {
	hash := sha256.Sum256(body)
	return hash[:]
}

// querier is a *sql.DB or a *sql.Tx.
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// stored returns the answer of an earlier request with the same key.
func stored(ctx context.Context, q querier, req request) (Answer, error) {
	var (
		same   bool
		status sql.NullInt32
		body   []byte
	)
	err := q.QueryRowContext(ctx, `SELECT request_hash = $2, status, answer FROM idempotency_keys WHERE key = $1`,
		req.key, req.hash).Scan(&same, &status, &body)
	switch {
	case err != nil:
		return Answer{}, err
	case !same:
		return Answer{}, errOtherRequest
	case !status.Valid:
		return Answer{}, errInProgress
	}
	return Answer{int(status.Int32), body}, nil
}

// finish stores the answer in the transaction of the payment, and commits both. If another request has answered meanwhile,
// the payment is rolled back, and the client asks again.
func finish(ctx context.Context, tx *sql.Tx, req request, a Answer) error {
	updated, err := tx.ExecContext(ctx, `UPDATE idempotency_keys SET status = $2, answer = $3, locked_at = NULL
		WHERE key = $1 AND status IS NULL`, req.key, a.Status, a.Body)
	if err != nil {
		return err
	}
	if n, err := updated.RowsAffected(); err != nil {
		return err
	} else if n == 0 {
		return errInProgress
	}
	return tx.Commit()
}

func reply(c *gin.Context, a Answer, err error) {
	switch {
	case err == nil:
		c.Data(a.Status, "application/json", a.Body)
	case errors.Is(err, errOtherRequest):
		c.AbortWithStatusJSON(http.StatusUnprocessableEntity, gin.H{"error": err.Error()})
	case errors.Is(err, errInProgress):
		c.Header("Retry-After", "1")
		c.AbortWithStatusJSON(http.StatusConflict, gin.H{"error": err.Error()})
	case errors.Is(err, errBank):
		c.AbortWithStatusJSON(http.StatusBadGateway, gin.H{"error": errBank.Error()})
	default:
		_ = c.Error(err)
		c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"error": "internal error"})
	}
}
