package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"testing"
	"time"
)

// waitingConn is a connection whose Commit waits until the context of its transaction ends, as
// one for a standby that is away.
type waitingConn struct {
	ctx     context.Context
	commits chan struct{} // closed when Commit waits
	deaf    chan struct{} // ends the wait in place of the context, as a driver such as lib/pq does
}

func (c *waitingConn) Connect(context.Context) (sqldriver.Conn, error) { return c, nil }

func (c *waitingConn) Driver() sqldriver.Driver { return nil }

func (c *waitingConn) Prepare(string) (sqldriver.Stmt, error) { return nil, errors.ErrUnsupported }

func (c *waitingConn) Close() error { return nil }

func (c *waitingConn) Begin() (sqldriver.Tx, error) { return nil, errors.ErrUnsupported }

func (c *waitingConn) Rollback() error { return nil }

func (c *waitingConn) BeginTx(ctx context.Context, _ sqldriver.TxOptions) (sqldriver.Tx, error) {
	c.ctx = ctx
	return c, nil
}

func (c *waitingConn) Commit() error {
	close(c.commits)
	if c.deaf != nil {
		<-c.deaf
		return nil
	}
	<-c.ctx.Done()
	return c.ctx.Err()
}

// lateContext is a context right after its end. The functions that wait for the end have not been
// called yet.
type lateContext struct{ context.Context }

func (lateContext) AfterFunc(func()) (stop func() bool) { return func() bool { return true } }

// Value hides the wrapped context from package context, which would call its AfterFunc otherwise.
func (lateContext) Value(any) any { return nil }

// A COMMIT whose time is over is cancelled in any case. It would hold its key until the standby
// is back otherwise. If the driver does not let a context end it, nobody waits for it.
func TestCommitPastItsTimeIsCancelled(t *testing.T) {
	t.Parallel()
	for name, deaf := range map[string]chan struct{}{"by the driver": nil, "by nothing": make(chan struct{})} {
		t.Run(name, func(t *testing.T) {
			conn := &waitingConn{commits: make(chan struct{}), deaf: deaf}
			db := sql.OpenDB(conn)
			defer db.Close()
			s, err := newSQLConnector(db, false).Connect(t.Context())
			must(t, err)
			must(t, s.Begin(t.Context(), sql.LevelDefault))
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				<-conn.commits
				cancel()
			}()
			if err := s.Commit(lateContext{ctx}); !errors.Is(err, context.Canceled) {
				t.Errorf("Commit() = %v, want %v", err, context.Canceled)
			}
			select {
			case <-conn.ctx.Done():
			case <-time.After(patience):
				t.Error("the driver still waits for its COMMIT")
			}
			closed := make(chan struct{})
			s.Close(true, func() { close(closed) })
			if deaf != nil {
				close(deaf)
			}
			<-closed
		})
	}
}

// A connection does not go back to the pool if the store cannot tell what is left in it.
func TestBrokenSessionLeavesThePool(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(&waitingConn{})
	defer db.Close()
	for broken, left := range map[bool]int{false: 1, true: 0} {
		s, err := newSQLConnector(db, false).Connect(t.Context())
		must(t, err)
		s.Close(broken, func() {})
		if n := db.Stats().OpenConnections; n != left {
			t.Errorf("Close(broken %t) leaves %d connections, want %d", broken, n, left)
		}
	}
}
