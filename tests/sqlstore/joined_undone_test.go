package sqlstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A handler of a request without a key commits by a statement, and then a statement of its next transaction fails, or the connection
// ends. That hides the COMMIT, and the client must not be told that nothing was done.
func TestJoinedWithoutKeyCommitHiddenByAFailure(t *testing.T) {
	t.Parallel()
	const pay, bad = "INSERT INTO payments VALUES ('%s', 100)", "SELECT nothing FROM nowhere"
	const ended = "SELECT pg_terminate_backend(pg_backend_pid())"
	const killed = "KILL CONNECTION_ID()"
	const byOthers = "by others" // who end the session while it is idle
	hidden := [][]string{
		{pay, "COMMIT", "BEGIN", bad},
		{pay, "COMMIT AND CHAIN", bad},
		{pay, "COMMIT", "BEGIN", ended},
		{pay, "COMMIT AND CHAIN", ended},
		{pay, "COMMIT AND CHAIN", byOthers},
		{pay, "COMMIT", killed},
		{pay, "COMMIT", bad},
		{pay, "COMMIT", "SAVEPOINT a", bad},
		{pay, bad},
		{bad, pay},
	}
	onEachJoined(t, func(t *testing.T, b backend) {
		for _, strict := range []bool{false, true} {
			p := serviceParts{}
			if strict {
				p = strictly(t, p)
			}
			s := startService(t, b, p)
			for i, statements := range hidden {
				for _, status := range []int{201, 402} {
					if last := statements[len(statements)-1]; status == 402 && (last == ended || last == killed || last == byOthers) {
						continue // nothing tells what such a handler has committed, and it has answered itself
					}
					order := fmt.Sprintf("%d-%d", i, status)
					op := idem.Operation{Transport: idem.TransportHTTP, Policy: &idem.Policy{AllowGlobalKeys: true}}
					res, err := s.engine.DoWithoutKey(t.Context(), op, func(ctx context.Context) (idem.Response, error) {
						tx, err := sqlstore.Tx(ctx)
						if err != nil {
							return idem.Response{}, err
						}
						var session int
						if b.dialect == dialect.PostgreSQL {
							must(t, tx.QueryRowContext(ctx, "SELECT pg_backend_pid()").Scan(&session))
						}
						for _, statement := range statements {
							if statement == byOthers && b.dialect == dialect.PostgreSQL {
								mustExec(t, s.pools.read, fmt.Sprintf("SELECT pg_terminate_backend(%d)", session))
								s.eventually("the session has ended", func() bool {
									return holds(s.pools.read, fmt.Sprintf("SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = %d", session))
								})
								continue
							}
							_, _ = tx.ExecContext(ctx, strings.Replace(statement, "%s", order, 1)) // goes on after each failure
						}
						return idem.Response{Status: status}, nil
					})
					var n int
					if err := s.pools.read.QueryRow("SELECT count(*) FROM payments WHERE op = '" + order + "'").Scan(&n); err != nil {
						t.Fatal(err)
					}
					refusal, refused := errors.AsType[*idem.Refusal](err)
					unknown := refused && refusal.Code == idem.CodeOutcomeUnknown
					if unknown && b.dialect == dialect.PostgreSQL && statements[1] == bad {
						t.Errorf("strict %t, %q, answered %d: the client was told that nobody knows, and the server does", strict, statements, status)
					}
					if undone := refused || res.Response.Status == 402; !unknown && undone == (n > 0) {
						t.Errorf("strict %t, %q, answered %d: the client was told %d, %v, and there are %d payments", strict, statements, status, res.Response.Status, err, n)
					}
				}
			}
		}
	})
}
