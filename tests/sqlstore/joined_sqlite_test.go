package sqlstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	sqlitedriver "modernc.org/sqlite"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// testCalls are what statements of SQLite call. A driver takes the name of a function once, and so all tests share one.
var (
	testCalls     sync.Map // func() by int64
	testCallsMade atomic.Int64
	testCallsInit = sync.OnceValue(func() error {
		return sqlitedriver.RegisterScalarFunction("calls_the_test", 1, func(_ *sqlitedriver.FunctionContext, args []sqldriver.Value) (sqldriver.Value, error) {
			if call, ok := testCalls.Load(args[0]); ok {
				call.(func())()
			}
			return args[0], nil
		})
	})
)

// inSQLite returns an expression for a statement of SQLite. It calls f in the middle of that, and its value is a negative
// number. Connections have it that are opened after the first call.
func inSQLite(t *testing.T, f func()) string {
	t.Helper()
	must(t, testCallsInit())
	n := -testCallsMade.Add(1)
	testCalls.Store(n, f)
	t.Cleanup(func() { testCalls.Delete(n) })
	return fmt.Sprintf("calls_the_test(%d)", n)
}

// hooklessConnector makes connections of SQLite that cannot refuse commits.
type hooklessConnector struct {
	driver sqldriver.Driver
	dsn    string
}

func (c hooklessConnector) Driver() sqldriver.Driver { return c.driver }

func (c hooklessConnector) Connect(context.Context) (sqldriver.Conn, error) {
	conn, err := c.driver.Open(c.dsn)
	if err != nil {
		return nil, err
	}
	return struct {
		sqldriver.Conn
		sqldriver.ConnBeginTx
		sqldriver.ExecerContext
		sqldriver.QueryerContext
	}{conn, conn.(sqldriver.ConnBeginTx), conn.(sqldriver.ExecerContext), conn.(sqldriver.QueryerContext)}, nil
}

// No handler runs on a driver that cannot refuse its commits.
func TestJoinedOnSQLiteWithoutACommitHookIsUnavailable(t *testing.T) {
	t.Parallel()
	s := startOn(t, dialect.SQLite, serviceParts{rewrite: func(p *pools) {
		plain := p.write.Driver()
		_ = p.write.Close()
		p.write = sql.OpenDB(hooklessConnector{plain, p.dsn})
		p.write.SetMaxOpenConns(1)
		t.Cleanup(func() { _ = p.write.Close() })
	}})
	s.want(s.pay("k1"), refused(503, idem.CodeUnavailable))
	if s.runs != 0 {
		t.Error("the handler ran")
	}
	s.wantNothingOpen("after the refusal")
}
