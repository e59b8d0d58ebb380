package joinsqlx

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/idemkeeper/idemkeeper/examples/sql/internal/paytest"
)

func open(ctx context.Context, s *paytest.Setting) (paytest.Pay, error) {
	sqlx.BindDriver("", sqlx.DOLLAR)
	_, err := s.SQL(ctx)
	return func(ctx context.Context, p paytest.Payment) (int64, error) { return Pay(ctx, Payment(p)) }, err
}

// openRollback opens a service whose handler sends ROLLBACK before it pays.
func openRollback(ctx context.Context, s *paytest.Setting) (paytest.Pay, error) {
	pay, err := open(ctx, s)
	return func(ctx context.Context, p paytest.Payment) (int64, error) {
		tx, err := Tx(ctx)
		if err != nil {
			return 0, err
		}
		if _, err := tx.ExecContext(ctx, "ROLLBACK"); err != nil {
			return 0, err
		}
		return pay(ctx, p)
	}, err
}

func TestMain(m *testing.M) {
	paytest.Main(m, map[string]paytest.Open{"sqlx": open, "ROLLBACK": openRollback})
}

func TestPaymentsOfSqlx(t *testing.T) { paytest.Run(t, "sqlx", open, nil) }

// This is a limit that docs/sql.md names. The payment has no record, so a retry runs. The unique
// operation ID refuses to pay again.
func TestRawRollbackBeforeACrashLeavesAPaymentWithoutARecord(t *testing.T) {
	s := paytest.Setup(t, "sqlx", open, nil)
	p := s.StartAs("ROLLBACK", paytest.Written)
	broken := make(chan paytest.Answer)
	go func() { broken <- p.Pay("k1", 100) }()
	p.WaitAt(paytest.Written)
	p.Kill()
	s.Want(<-broken, 0, false)
	s.WantPayments(100)
	p = s.Start("")
	s.Want(p.Pay("k1", 100), 500, false)
	s.WantPayments(100)
	if _, err := s.Pool.Exec(t.Context(), "ALTER TABLE payments DROP CONSTRAINT payments_pkey"); err != nil {
		t.Fatal(err)
	}
	s.Want(p.Pay("k1", 100), 201, false)
	s.WantPayments(100, 100)
}
