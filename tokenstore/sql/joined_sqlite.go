package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// sqliteGuard is the [guard] of SQLite.
//
// One process owns the file and knows its open keys. An error in a statement can end the
// transaction there, and the handler's next statement would commit by itself. So a commit hook
// refuses every commit that the middleware has not allowed.
type sqliteGuard struct {
	joined *Joined

	mu   sync.Mutex
	open map[driver.KeyID]bool
}

func newSQLiteGuard(ctx context.Context, j *Joined) (guard, error) {
	switch {
	case j.read == j.db:
		return nil, fmt.Errorf("%w: joined mode needs a pool for writing and one for reading: see WithReadPool", errSetting)
	case j.config.visibility != driver.VisibilityProcess:
		return nil, fmt.Errorf("%w: joined mode on SQLite is for one process: lock the file and say so with WithSoleProcess", errSetting)
	}
	if err := noAttachedFile(ctx, j.db); err != nil {
		return nil, err
	}
	j.joined = newJoinedStatements(j.names, joinedForms{taken: " RETURNING started"})
	return &sqliteGuard{joined: j, open: map[driver.KeyID]bool{}}, nil
}

func (g *sqliteGuard) claim(id driver.KeyID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.open[id] {
		return false
	}
	g.open[id] = true
	return true
}

func (g *sqliteGuard) unclaim(id driver.KeyID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.open, id)
}

func (g *sqliteGuard) held(_ context.Context, id driver.KeyID) (bool, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.open[id], nil
}

// commitGate is the state of a transaction: it lets one commit through.
type commitGate struct{ allowed atomic.Bool }

// before sets what a connection has for itself. Foreign keys refuse the commit of a pending
// record. Others may have turned off the writing to the disk, for example to load data.
func (g *sqliteGuard) before(ctx context.Context, t *joinedTx, _ *pending) (bool, error) {
	gate := new(commitGate)
	for _, pragma := range []string{"PRAGMA foreign_keys = ON", "PRAGMA synchronous = FULL"} {
		if _, err := t.session.(*sqlSession).conn.ExecContext(ctx, pragma); err != nil {
			return false, err
		}
	}
	if err := noAttachedFile(ctx, t.session.(*sqlSession).conn); err != nil {
		return false, err
	}
	if err := setCommitHook(t.session.(*sqlSession).conn, func() bool { return gate.allowed.CompareAndSwap(true, false) }); err != nil {
		return false, err
	}
	t.state = gate
	return false, nil
}

func (g *sqliteGuard) begin(ctx context.Context, t *joinedTx) error {
	_, err := g.before(ctx, t, nil)
	if err == nil {
		err = t.session.Begin(ctx, g.joined.isolation)
	}
	if err == nil {
		_, err = t.tx().ExecContext(ctx, "SAVEPOINT "+t.savepoint()) // has gone once the transaction is another one
	}
	return err
}

func (g *sqliteGuard) intact(*joinedTx) (statement string, args []any) { return "SELECT 1", nil }

func (g *sqliteGuard) after(ctx context.Context, t *joinedTx) error {
	if t.state == nil {
		return nil
	}
	s := t.session.(*sqlSession) // a goroutine of the handler may be in a statement
	return s.within(ctx, func() error { return setCommitHook(s.conn, nil) })
}

// noAttachedFile returns an error if the connection has another file. With write-ahead logging SQLite
// commits one file after the other, so a crash in between would keep the record and lose the payment.
func noAttachedFile(ctx context.Context, q querier) error {
	var name string
	err := q.QueryRowContext(ctx, attachedFile).Scan(&name)
	return attached(name, err)
}

const attachedFile = "SELECT name FROM pragma_database_list WHERE name NOT IN ('main', 'temp')"

// attached is the error of noAttachedFile, from the row of attachedFile.
func attached(name string, err error) error {
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("%w: the file %q is attached, and its commits are not those of the records: keep the ledger in the file of the records", errSetting, name)
}

// errNoHook says that the driver cannot refuse commits.
var errNoHook = errors.New("the driver of SQLite has no commit hook: use modernc.org/sqlite")

// setCommitHook has the connection ask allow before each commit. Nil removes the hook. The
// method and its parameter have types of the driver, and an import of the driver would link it
// into services on other databases.
func setCommitHook(conn *sql.Conn, allow func() bool) error {
	return conn.Raw(func(driverConn any) error {
		register := reflect.ValueOf(innermost(driverConn)).MethodByName("RegisterCommitHook")
		if !register.IsValid() || register.Type().NumIn() != 1 {
			return errNoHook
		}
		hook := register.Type().In(0) // func() int32, or func() int: 0 lets the commit through
		if hook.Kind() != reflect.Func || hook.NumIn() != 0 || hook.NumOut() != 1 || !hook.Out(0).ConvertibleTo(reflect.TypeFor[int]()) {
			return errNoHook
		}
		fn := reflect.Zero(hook)
		if allow != nil {
			fn = reflect.MakeFunc(hook, func([]reflect.Value) []reflect.Value {
				refused := 1
				if allow() {
					refused = 0
				}
				return []reflect.Value{reflect.ValueOf(refused).Convert(hook.Out(0))}
			})
		}
		register.Call([]reflect.Value{fn})
		return nil
	})
}

func (g *sqliteGuard) take(ctx context.Context, t *joinedTx, p *pending, from *driver.Record) (taken, waited bool, err error) {
	text, args := g.joined.joined.insert+" RETURNING started", g.joined.insertArgs(p)
	if from != nil {
		text, args = g.joined.joined.update, g.joined.updateArgs(p, from)
	}
	var started int64
	err = t.tx().QueryRowContext(ctx, text, args...).Scan(&started)
	if errors.Is(err, sql.ErrNoRows) {
		return false, false, nil
	}
	t.started = time.UnixMicro(started).UTC()
	return err == nil, false, err
}

// escaped has nothing to look for, because the hook has refused every commit.
func (g *sqliteGuard) escaped(context.Context, *joinedTx) error { return nil }

func (g *sqliteGuard) rollBack(context.Context, *joinedTx) error { return nil }

func (g *sqliteGuard) completeAndCommit(context.Context, *joinedTx, *completion) (able, sent bool, err error) {
	return false, false, nil
}

func (g *sqliteGuard) complete(ctx context.Context, t *joinedTx, c *completion) error {
	s := t.session.(*sqlSession)
	var name string
	err := s.QueryRow(ctx, attachedFile, nil, &name)
	if s.stuck != nil {
		return ErrStatementOpen
	}
	if err := attached(name, err); err != nil {
		return err
	}
	if c == nil {
		if _, err = t.execTx(ctx, t.releaseSavepoint()); err != nil && strings.Contains(err.Error(), "no such savepoint") {
			return fmt.Errorf("%w: the transaction had been rolled back", driver.ErrSwallowed)
		}
		return err
	}
	n, err := t.execTx(ctx, g.joined.joined.complete, t.completeArgs(c)...)
	if refusedByHook(err) || err == nil && n != 1 { // the transaction had ended, and this would commit by itself
		return fmt.Errorf("%w: the transaction had been rolled back", driver.ErrSwallowed)
	}
	return err
}

func (g *sqliteGuard) commit(ctx context.Context, t *joinedTx) error {
	t.state.(*commitGate).allowed.Store(true)
	return t.session.Commit(ctx)
}

// undone lists the errors after which the driver rolls back.
func (g *sqliteGuard) undone(err error) bool {
	code := sqldialect.SQLiteCode(err) & 0xff
	return code == sqldialect.SQLiteConstraint || code == sqldialect.SQLiteBusy
}

// refusedByHook reports whether the commit hook has refused a statement (SQLITE_CONSTRAINT_COMMITHOOK).
func refusedByHook(err error) bool {
	return sqldialect.SQLiteCode(err) == sqldialect.SQLiteConstraint|2<<8
}
