package stores

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/stdlib"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

// heldBack keeps the calls to lock and begin from the server, until they are delivered as they are.
type heldBack struct {
	c     *combined
	over  atomic.Bool
	mu    sync.Mutex
	again []func() error
}

// holdBack makes the calls come late from now on.
func (c *combined) holdBack() *heldBack {
	c.Helper()
	if _, err := c.do("warm", func(context.Context) (idem.Response, error) { return idem.Response{Status: 201}, nil }); err != nil { // the server learns the script
		c.Fatal(err)
	}
	h := &heldBack{c: c}
	c.late.Store(h)
	return h
}

// deliver lets them come.
func (h *heldBack) deliver() {
	h.c.Helper()
	h.over.Store(true)
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.again) == 0 {
		h.c.Fatal("there is no call to deliver")
	}
	for _, send := range h.again {
		if err := send(); err != nil {
			h.c.Fatalf("a late call = %v", err)
		}
	}
}

var errHeldBack = errors.New("the call was held back")

// holds keeps a call, which again sends.
func (c *combined) holds(again func() error) bool {
	h := c.late.Load()
	if h == nil || h.over.Load() {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.again = append(h.again, again)
	return true
}

// redisCalls is a hook for the calls to Redis.
type redisCalls struct{ c *combined }

// holds reports whether a command is such a call. Only that has as many keys.
func (r redisCalls) holds(client goredis.ProcessHook, cmd goredis.Cmder) bool {
	args := cmd.Args()
	if !strings.HasPrefix(cmd.Name(), "eval") || len(args) < 3 || fmt.Sprint(args[2]) < "8" {
		return false
	}
	again := func() error { return client(context.Background(), goredis.NewCmd(context.Background(), args...)) }
	if !r.c.holds(again) {
		return false
	}
	cmd.SetErr(errHeldBack)
	return true
}

func (r redisCalls) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (r redisCalls) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if r.holds(next, cmd) {
			return errHeldBack
		}
		return next(ctx, cmd)
	}
}

func (r redisCalls) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	one := func(ctx context.Context, cmd goredis.Cmder) error { return next(ctx, []goredis.Cmder{cmd}) }
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		if len(cmds) == 1 && r.holds(one, cmds[0]) {
			return errHeldBack
		}
		return next(ctx, cmds)
	}
}

// sqlCalls is a connector for the calls to PostgreSQL.
type sqlCalls struct {
	sqldriver.Connector
	c *combined
}

func (s sqlCalls) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := s.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &sqlCall{conn.(*stdlib.Conn), s}, nil
}

type sqlCall struct {
	*stdlib.Conn
	calls sqlCalls
}

// QueryContext holds a statement that takes a lock and writes a record.
func (s *sqlCall) QueryContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	again := func() error {
		db := sql.OpenDB(s.calls.Connector)
		defer db.Close()
		values := make([]any, len(args))
		for i, a := range args {
			values[i] = a.Value
		}
		_, err := db.ExecContext(context.Background(), query, values...)
		return err
	}
	if strings.Contains(query, "lock_domain") && strings.Contains(query, "started") && s.calls.c.holds(again) {
		return nil, errHeldBack
	}
	s.calls.c.statements.Add(1)
	return s.Conn.QueryContext(ctx, query, args)
}

func (s *sqlCall) ExecContext(ctx context.Context, query string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	s.calls.c.statements.Add(1)
	return s.Conn.ExecContext(ctx, query, args)
}
