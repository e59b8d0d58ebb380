package crashtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
)

// noting is a driver that notes what is closed.
type noting struct {
	driver.Conn
	closed []string
}

func (n *noting) Connect(context.Context) (driver.Conn, error) { return n, nil }
func (n *noting) Driver() driver.Driver                        { return nil }

func (n *noting) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return notingRows{n}, nil
}

func (n *noting) Close() error {
	n.closed = append(n.closed, "connection")
	return nil
}

type notingRows struct{ of *noting }

func (notingRows) Columns() []string         { return []string{"n"} }
func (notingRows) Next([]driver.Value) error { return nil }

func (r notingRows) Close() error {
	r.of.closed = append(r.of.closed, "rows")
	return nil
}

// SQLite would keep the locks of a connection that is closed before its rows.
func TestALostAnswerClosesItsRowsFirst(t *testing.T) {
	t.Parallel()
	service, kit := net.Pipe()
	defer kit.Close()
	go func() {
		for buf := make([]byte, 1<<10); ; {
			if _, err := kit.Read(buf); err != nil {
				return
			}
		}
	}()
	env := &Env{control: &control{conn: service}}
	env.arm(target{"SELECT FROM payments", 1, AnswerLost})
	d := &noting{}
	db := sql.OpenDB(env.Connector(d))
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), "SELECT n FROM payments").Scan(new(int)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the answer = %v, want it lost with the connection", err)
	}
	if want := []string{"rows", "connection"}; !slices.Equal(d.closed, want) {
		t.Errorf("closed %v, want %v", d.closed, want)
	}
}
