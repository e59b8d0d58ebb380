package sqldialect

import (
	"errors"
	"fmt"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
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
	pg := func(code string) error { return &pgconn.PgError{Code: code} }
	my := func(number uint16) error { return &mysqldriver.MySQLError{Number: number} }
	lite := func(code int) error { return sqliteError(code) }
	for _, tt := range []struct {
		of   *Dialect
		err  error
		want Fault
	}{
		{postgres, nil, Other},
		{postgres, errors.New("unexpected EOF"), Other},
		{postgres, pg("57P01"), Other}, // the server goes; the outcome of a commit is not known
		{postgres, pg("23505"), Duplicate},
		{postgres, pg("40001"), Conflict},
		{postgres, pg("40P01"), Conflict},
		{postgres, pg("42P01"), NoTable},
		{postgres, pg("54000"), TooBig},
		{postgres, pg("55P03"), Busy},
		{postgres, pg("25006"), ReadOnly},
		{postgres, pg("53100"), ReadOnly},
		{postgres, pg("42501"), Denied},
		{mysql, nil, Other},
		{mysql, mysqldriver.ErrInvalidConn, Other},
		{mysql, my(2013), Other},
		{mysql, my(1062), Duplicate},
		{mysql, my(1213), Conflict},
		{mysql, my(1020), Conflict},
		{mysql, my(1153), TooBig},
		{mysql, mysqldriver.ErrPktTooLarge, TooBig},
		{mysql, my(1205), Busy},
		{mysql, my(1690), Uncommitted},
		{mysql, my(1290), ReadOnly},
		{mysql, my(1021), ReadOnly},
		{mysql, my(1114), ReadOnly},
		{mysql, my(1146), NoTable},
		{mysql, my(1060), There},
		{mysql, my(1142), Denied},
		{mysql, &otherError{Number: 1062}, Other}, // of another driver
		{sqlite, nil, Other},
		{sqlite, errors.New("no such table"), Other}, // of no driver
		{sqlite, lite(5), Busy},
		{sqlite, lite(6), Busy},
		{sqlite, lite(5 | 2<<8), Conflict},
		{sqlite, lite(1), NoTable},
		{sqlite, lite(8), ReadOnly},
		{sqlite, lite(13), ReadOnly},
		{sqlite, lite(18), TooBig},
		{sqlite, lite(19 | 6<<8), Duplicate},
		{sqlite, lite(19 | 8<<8), Duplicate},
		{sqlite, lite(19 | 3<<8), Other},
		{sqlite, lite(10), Other},
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
