package pgxstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// openPool is an engine on a pool of Open, in an empty database.
func openPool(t *testing.T) (l *ledger, db *sql.DB, pay func(key string, statements ...string) (idem.Result, error)) {
	t.Helper()
	l = setup(t)
	l.policy.DuplicateWait = patience
	u, err := url.Parse(l.pool.Config().ConnString())
	must(t, err)
	db, err = Open(u.String())
	must(t, err)
	db.SetMaxOpenConns(5)
	db.SetMaxIdleConns(5)
	t.Cleanup(func() { _ = db.Close() })
	engine, err := sqlstore.Join(t.Context(), db, dialect.PostgreSQL)
	must(t, err)
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return l, db, func(key string, statements ...string) (idem.Result, error) {
		fingerprint := func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, "POST /pay", "100") }
		op := idem.Operation{Transport: idem.TransportHTTP, Key: idem.Key(key), Policy: &l.policy, Fingerprint: fingerprint}
		return engine.Do(context.Background(), op, func(ctx context.Context) (idem.Response, error) {
			tx, err := sqlstore.Tx(ctx)
			if err != nil {
				return idem.Response{}, err
			}
			for _, statement := range statements {
				if _, err = tx.ExecContext(ctx, statement); err != nil {
					break
				}
			}
			return idem.Response{Status: 201, Body: []byte("answer")}, err
		})
	}
}

// A pool of Open is a pool like any other, and payments in joined mode commit with their record.
func TestPoolOfOpenPays(t *testing.T) {
	t.Parallel()
	l, db, pay := openPool(t)
	insert := "INSERT INTO payments VALUES ('op', 100)"
	for _, replayed := range []bool{false, true} {
		res, err := pay("k", insert)
		l.want(res, err, 201, replayed)
	}
	for name, statements := range map[string][]string{
		"a statement that fails":      {insert, "INSERT INTO nowhere VALUES (1)"},
		"a constraint at COMMIT":      {"CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)", "INSERT INTO once VALUES (1), (1)", insert},
		"a ROLLBACK of the handler":   {insert, "ROLLBACK"},
		"a COMMIT of the handler":     {insert, "COMMIT"},
		"a record that it has undone": {insert, "DELETE FROM idem_records WHERE state = 2"},
	} {
		if res, err := pay(name, statements...); err == nil {
			t.Errorf("%s: Do() = %+v, want an error", name, res)
		}
		l.wantPayments(1)
	}
	var wg sync.WaitGroup
	for n := range 40 { // more than the pool has connections
		wg.Go(func() {
			res, err := pay(fmt.Sprint("k", n/2), insert)
			l.want(res, err, 201, res.Replayed)
		})
	}
	wg.Wait()
	l.wantPayments(21)

	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelSerializable})
	must(t, err)
	_, err = tx.Exec(insert)
	must(t, err)
	must(t, tx.Commit())
	l.wantPayments(22)
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use, want none", n)
	}
}

// foreign is a connector of another driver.
type foreign struct{ sqldriver.Connector }

func (foreign) Connect(context.Context) (sqldriver.Conn, error) { return closing{}, nil }

type closing struct{ sqldriver.Conn }

func (closing) Close() error { return nil }

func TestPipelinedIsForPgx(t *testing.T) {
	t.Parallel()
	db := sql.OpenDB(Pipelined(foreign{}))
	defer db.Close()
	if err := db.PingContext(t.Context()); err == nil || !strings.Contains(err.Error(), "want that of pgx's stdlib") {
		t.Errorf("Ping() = %v, want what is wrong with the driver", err)
	}
	if _, err := Open("postgres://user:secret@:port"); err == nil || strings.Contains(err.Error(), "secret") {
		t.Errorf("Open() = %v, want an error without the password", err)
	}
	// Whoever needs the driver's connection finds it.
	l := setup(t)
	db = sql.OpenDB(Pipelined(stdlib.GetConnector(*l.pool.Config().ConnConfig)))
	defer db.Close()
	conn, err := db.Conn(t.Context())
	must(t, err)
	defer conn.Close()
	must(t, conn.Raw(func(c any) error {
		if _, ok := c.(interface{ Raw() sqldriver.Conn }).Raw().(*stdlib.Conn); !ok {
			return errors.New("no connection of stdlib")
		}
		return nil
	}))
}
