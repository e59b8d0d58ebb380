package joinsqlc

import (
	"context"
	"testing"

	"github.com/idemkeeper/idemkeeper/examples/sql/internal/paytest"
	"github.com/idemkeeper/idemkeeper/examples/sql/joinsqlc/pgxdb"
	"github.com/idemkeeper/idemkeeper/examples/sql/joinsqlc/stddb"
)

func open(ctx context.Context, s *paytest.Setting) (paytest.Pay, error) {
	_, err := s.SQL(ctx)
	return func(ctx context.Context, p paytest.Payment) (int64, error) { return Pay(ctx, stddb.Payment(p)) }, err
}

func openPgx(ctx context.Context, s *paytest.Setting) (paytest.Pay, error) {
	_, err := s.Pgx(ctx)
	return func(ctx context.Context, p paytest.Payment) (int64, error) { return PayWithPgx(ctx, pgxdb.Payment(p)) }, err
}

func TestMain(m *testing.M) {
	paytest.Main(m, map[string]paytest.Open{"database/sql": open, "pgx": openPgx})
}

func TestPaymentsOfSqlc(t *testing.T) { paytest.Run(t, "database/sql", open, nil) }

func TestPaymentsOfSqlcWithPgx(t *testing.T) { paytest.Run(t, "pgx", openPgx, nil) }
