package sqlstore_test

import (
	"errors"
	"fmt"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// otherError has a number that is none of MySQL.
type otherError struct{ Number uint16 }

func (otherError) Error() string { return "1062" }

// sqliteError is an error of the driver with an extended result code.
type sqliteError int

func (e sqliteError) Error() string { return fmt.Sprintf("SQLite error %d: no such table", int(e)) }
func (e sqliteError) Code() int     { return int(e) }

// The faults are read from the errors of the drivers, also below other errors. The tests of the store on
// servers make most of them happen.
func TestFaults(t *testing.T) {
	t.Parallel()
	postgres, mysql, sqlite := sqldialect.Of(dialect.PostgreSQL), sqldialect.Of(dialect.MySQL), sqldialect.Of(dialect.SQLite)
	pg := func(code string) error { return &pgconn.PgError{Code: code} }
	my := func(number uint16) error { return &mysqldriver.MySQLError{Number: number} }
	lite := func(code int) error { return sqliteError(code) }
	for _, tt := range []struct {
		of   *sqldialect.Dialect
		err  error
		want sqldialect.Fault
	}{
		{postgres, nil, sqldialect.Other},
		{postgres, errors.New("unexpected EOF"), sqldialect.Other},
		{postgres, pg("57P01"), sqldialect.Other}, // the server goes; the outcome of a commit is not known
		{postgres, pg("23505"), sqldialect.Duplicate},
		{postgres, pg("40001"), sqldialect.Conflict},
		{postgres, pg("40P01"), sqldialect.Conflict},
		{postgres, pg("42P01"), sqldialect.NoTable},
		{postgres, pg("54000"), sqldialect.TooBig},
		{postgres, pg("55P03"), sqldialect.Busy},
		{postgres, pg("25006"), sqldialect.ReadOnly},
		{postgres, pg("53100"), sqldialect.ReadOnly},
		{postgres, pg("42501"), sqldialect.Denied},
		{mysql, nil, sqldialect.Other},
		{mysql, mysqldriver.ErrInvalidConn, sqldialect.Other},
		{mysql, my(2013), sqldialect.Other},
		{mysql, my(1062), sqldialect.Duplicate},
		{mysql, my(1213), sqldialect.Conflict},
		{mysql, my(1020), sqldialect.Conflict},
		{mysql, my(1153), sqldialect.TooBig},
		{mysql, mysqldriver.ErrPktTooLarge, sqldialect.TooBig},
		{mysql, my(1205), sqldialect.Busy},
		{mysql, my(1690), sqldialect.Uncommitted},
		{mysql, my(1290), sqldialect.ReadOnly},
		{mysql, my(1021), sqldialect.ReadOnly},
		{mysql, my(1114), sqldialect.ReadOnly},
		{mysql, my(1146), sqldialect.NoTable},
		{mysql, my(1060), sqldialect.There},
		{mysql, my(1142), sqldialect.Denied},
		{mysql, &otherError{Number: 1062}, sqldialect.Other}, // of another driver
		{sqlite, nil, sqldialect.Other},
		{sqlite, errors.New("no such table"), sqldialect.Other}, // of no driver
		{sqlite, lite(5), sqldialect.Busy},
		{sqlite, lite(6), sqldialect.Busy},
		{sqlite, lite(5 | 2<<8), sqldialect.Conflict},
		{sqlite, lite(1), sqldialect.NoTable},
		{sqlite, lite(8), sqldialect.ReadOnly},
		{sqlite, lite(13), sqldialect.ReadOnly},
		{sqlite, lite(18), sqldialect.TooBig},
		{sqlite, lite(19 | 6<<8), sqldialect.Duplicate},
		{sqlite, lite(19 | 8<<8), sqldialect.Duplicate},
		{sqlite, lite(19 | 3<<8), sqldialect.Other},
		{sqlite, lite(10), sqldialect.Other},
	} {
		for _, err := range []error{tt.err, fmt.Errorf("wrapped: %w", tt.err), errors.Join(tt.err, errors.New("another"))} {
			if tt.err == nil {
				err = nil
			}
			if got := tt.of.Fault(err); got != tt.want {
				t.Errorf("%s: Fault(%v) = %v, want %v", tt.of.Name, err, got, tt.want)
			}
		}
	}
}
