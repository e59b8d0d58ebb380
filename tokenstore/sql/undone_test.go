package sqlstore

import (
	"errors"
	"fmt"
	"testing"
)

// sqliteError is an error of the driver with an extended result code.
type sqliteError int

func (e sqliteError) Error() string { return fmt.Sprintf("SQLite error %d: no such table", int(e)) }

func (e sqliteError) Code() int { return int(e) }

// postgresError is an error of the server with its code.
type postgresError string

func (e postgresError) Error() string    { return "PostgreSQL error " + string(e) }
func (e postgresError) SQLState() string { return string(e) }

// A definite failure of COMMIT was rolled back. Everything else is probed.
func TestFailuresOfCommitThatAreDefinite(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		want bool
	}{{sqliteError(19 | 2<<8), true}, {sqliteError(5), true}, {sqliteError(10), false}, {errors.New("EOF"), false}} {
		if got := (&sqliteGuard{}).undone(tt.err); got != tt.want {
			t.Errorf("SQLite: undone(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
	for code, want := range map[string]bool{"23503": true, "40001": true, "57P01": false, "08006": false} {
		if got := (&postgresGuard{}).undone(postgresError(code)); got != want {
			t.Errorf("PostgreSQL: undone(%s) = %v, want %v", code, got, want)
		}
	}
}
