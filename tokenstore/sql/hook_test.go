package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"testing"
)

// hooked is a driver whose method takes a hook of another kind.
type hooked[F any] struct{ waitingConn }

func (*hooked[F]) RegisterCommitHook(F) {}

func (c *hooked[F]) Connect(context.Context) (sqldriver.Conn, error) { return c, nil }

// hookless is a driver whose method takes none.
type hookless struct{ waitingConn }

func (*hookless) RegisterCommitHook() {}

func (c *hookless) Connect(context.Context) (sqldriver.Conn, error) { return c, nil }

func TestDriverWithACommitHookOfAnotherKindIsRefused(t *testing.T) {
	t.Parallel()
	for _, c := range []sqldriver.Connector{new(hookless), new(hooked[int]), new(hooked[func(int) int]), new(hooked[func()]), new(hooked[func() string]), new(hooked[func() (int, string)])} {
		db := sql.OpenDB(c)
		conn, err := db.Conn(t.Context())
		must(t, err)
		if err := setCommitHook(conn, func() bool { return false }); !errors.Is(err, errNoHook) {
			t.Errorf("setCommitHook() on %T = %v, want %v", c, err, errNoHook)
		}
		_ = conn.Close()
		_ = db.Close()
	}
}
