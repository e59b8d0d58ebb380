// Package sqlpipeline is what tokenstore/sql asks of a driver's connection that sends a statement together with BEGIN or COMMIT.
//
// database/sql calls the driver for each of the two and has no place for a statement there. So BEGIN finds the statement in its
// context, and COMMIT in the connection.
package sqlpipeline

import "context"

// Statement goes with BEGIN or COMMIT in one round trip.
type Statement struct {
	Text string
	Args []any
	To   []any // for the columns of its row

	Sent    bool // the connection has sent it
	Skipped bool // and the server has skipped COMMIT for certain, because the statement has failed
}

type key struct{}

// WithBegin returns a context whose BEGIN goes with a statement.
func WithBegin(ctx context.Context, st *Statement) context.Context {
	return context.WithValue(ctx, key{}, st)
}

// OfBegin returns the statement that goes with the BEGIN of a context, or nil.
func OfBegin(ctx context.Context) *Statement {
	st, _ := ctx.Value(key{}).(*Statement)
	return st
}

// Conn is a connection of a driver whose BeginTx heeds [OfBegin]. If the statement fails there, BeginTx rolls back and returns the
// error. database/sql calls its methods one at a time.
type Conn interface {
	// CommitWith sets the statement that goes with the next COMMIT. If the statement fails, that COMMIT rolls back, sets Skipped if
	// the server has skipped it for certain, and returns the error.
	CommitWith(st *Statement)
}
