package sqlstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// forgetful is a wrapper that begins transactions with a context of its own.
type forgetful struct{ sqldriver.Connector }

func (f forgetful) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := f.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return forgetfulConn{conn.(pgxConn)}, nil
}

// pgxConn is what database/sql uses of a connection of pgx.
type pgxConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
}

type forgetfulConn struct{ pgxConn }

func (c forgetfulConn) Raw() sqldriver.Conn { return c.pgxConn }

func (c forgetfulConn) CheckNamedValue(v *sqldriver.NamedValue) error {
	return c.pgxConn.(sqldriver.NamedValueChecker).CheckNamedValue(v)
}

func (c forgetfulConn) BeginTx(_ context.Context, opts sqldriver.TxOptions) (sqldriver.Tx, error) {
	return c.pgxConn.BeginTx(context.Background(), opts)
}

// Behind a wrapper that hands no contexts on, the statements go by themselves.
func TestJoinedPipelineBehindAWrapperThatHidesTheContext(t *testing.T) {
	t.Parallel()
	s := startService(t, pipelined, serviceParts{rewrite: func(p *pools) {
		c, err := pipelinedDriver{}.OpenConnector(p.dsn)
		must(t, err)
		p.write = sql.OpenDB(forgetful{c})
		t.Cleanup(func() { _ = p.write.Close() })
	}})
	s.want(s.pay("k1"), paid)
	s.want(s.pay("k1"), paidBefore)
	s.with(s.sending(201, "pay", "DELETE FROM idem_records WHERE state = 2"))
	s.want(s.pay("k2"), refused(409, idem.CodeOutcomeUnknown))
	s.wantPayments(1)
	s.wantNothingOpen("after the payments")
}
