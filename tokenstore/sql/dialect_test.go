package sqlstore

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// otherError has a number that is none of MySQL.
type otherError struct{ Number uint16 }

func (otherError) Error() string { return "1062" }

// The faults are read from the errors of the drivers, also below other errors. The tests on
// servers make most of them happen.
func TestFaults(t *testing.T) {
	t.Parallel()
	pg := func(code string) error { return &pgconn.PgError{Code: code} }
	my := func(number uint16) error { return &mysqldriver.MySQLError{Number: number} }
	for _, tt := range []struct {
		of   *dialect
		err  error
		want fault
	}{
		{postgres, nil, faultOther},
		{postgres, errors.New("unexpected EOF"), faultOther},
		{postgres, pg("57P01"), faultOther}, // the server goes; the outcome of a commit is not known
		{postgres, pg("40001"), faultConflict},
		{postgres, pg("40P01"), faultConflict},
		{postgres, pg("54000"), faultTooBig},
		{postgres, pg("55P03"), faultBusy},
		{postgres, pg("25006"), faultReadOnly},
		{postgres, pg("53100"), faultReadOnly},
		{mysql, nil, faultOther},
		{mysql, mysqldriver.ErrInvalidConn, faultOther},
		{mysql, my(2013), faultOther},
		{mysql, my(1062), faultDuplicate},
		{mysql, my(1213), faultConflict},
		{mysql, my(1020), faultConflict},
		{mysql, my(1153), faultTooBig},
		{mysql, mysqldriver.ErrPktTooLarge, faultTooBig},
		{mysql, my(1205), faultBusy},
		{mysql, my(1290), faultReadOnly},
		{mysql, my(1021), faultReadOnly},
		{mysql, my(1114), faultReadOnly},
		{mysql, my(1146), faultNoTable},
		{mysql, &otherError{Number: 1062}, faultOther},    // of another driver
		{sqlite, errors.New("no such table"), faultOther}, // of no driver
	} {
		for _, err := range []error{tt.err, fmt.Errorf("wrapped: %w", tt.err), errors.Join(tt.err, errors.New("another"))} {
			if tt.err == nil {
				err = nil
			}
			if got := tt.of.fault(err); got != tt.want {
				t.Errorf("%s: fault(%v) = %v, want %v", tt.of.name, err, got, tt.want)
			}
		}
	}
}

func TestStatementsForDialects(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		names names
		want  string
	}{
		{names{postgres, "", "idem_"}, `SELECT kind FROM "idem_records" WHERE k = $1 AND "idem_x" = $2 ON CONFLICT DO NOTHING`},
		{names{postgres, "pay", "p_"}, `SELECT kind FROM "pay"."p_records" WHERE k = $1 AND "p_x" = $2 ON CONFLICT DO NOTHING`},
		{names{mysql, "pay", "p_"}, "SELECT kind FROM `pay`.`p_records` WHERE k = ? AND `p_x` = ? "},
		{names{sqlite, "", "p_"}, `SELECT kind FROM "p_records" WHERE k = ? AND "p_x" = ? ON CONFLICT DO NOTHING`},
	} {
		if got := tt.names.sql("SELECT kind FROM {records} WHERE k = ? AND {name:x} = ? {once}"); got != tt.want {
			t.Errorf("%+v: sql() = %s, want %s", tt.names, got, tt.want)
		}
	}
}

func TestStatementsOfAFile(t *testing.T) {
	t.Parallel()
	const file = "-- about; this\nCREATE TABLE a (\n\tx int, -- with; a comment\n\ty int\n);\n\nDO $$\nBEGIN\n\tx;\nEND $$;\nCREATE TABLE b (z int);\n"
	block := "DO $$\nBEGIN\n\tx;\nEND $$"
	for comments, first := range map[bool]string{
		false: "CREATE TABLE a (\n\tx int,\n\ty int\n)",
		true:  "CREATE TABLE a (\n\tx int, -- with; a comment\n\ty int\n)",
	} {
		if got, want := splitStatements(file, comments), []string{first, block, "CREATE TABLE b (z int)"}; !slices.Equal(got, want) {
			t.Errorf("splitStatements(%t) = %q, want %q", comments, got, want)
		}
	}
}
