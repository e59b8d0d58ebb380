// Package sqllocks has what package lock/sql and a store that takes its locks have to agree on.
package sqllocks

import (
	"context"
	"database/sql"
	"time"
)

// Space is the LockSpace of a locker and of a store. Two that are equal are the same place.
type Space struct {
	DB             *sql.DB
	Schema, Prefix string // of the tables
}

type cleaning struct{}

// WithCleaning has a locker that is made with the context remove the rows of free locks so often. Only tests do that, because requests
// that take longer than this may then get a stale fence.
func WithCleaning(ctx context.Context, every time.Duration) context.Context {
	return context.WithValue(ctx, cleaning{}, every)
}

// Cleaning is how often a locker removes the rows of free locks.
func Cleaning(ctx context.Context) time.Duration {
	if every, ok := ctx.Value(cleaning{}).(time.Duration); ok {
		return every
	}
	return time.Minute
}
