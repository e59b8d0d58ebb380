package joinent

import (
	"context"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/examples/sql/internal/paytest"
	"github.com/idemkeeper/idemkeeper/examples/sql/joinent/ent"
)

func open(ctx context.Context, s *paytest.Setting) (paytest.Pay, error) {
	_, err := s.SQL(ctx)
	return func(ctx context.Context, p paytest.Payment) (int64, error) { return Pay(ctx, Payment(p)) }, err
}

func TestMain(m *testing.M) { paytest.Main(m, map[string]paytest.Open{"ent": open}) }

func TestPaymentsOfEnt(t *testing.T) { paytest.Run(t, "ent", open, nil) }

// An update asks the driver for a transaction, and so does a handler that begins its own.
func TestUpdateAndTransactionOfEntJoin(t *testing.T) {
	s := paytest.Setup(t, "ent", open, nil).Serve().After(func(c *gin.Context) {
		ctx := c.Request.Context()
		client, err := Client(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		if err := client.Payment.Update().AddAmount(1).Exec(ctx); err != nil {
			t.Errorf("Update() = %v", err)
		}
		for id, begin := range map[string]func() (*ent.Tx, error){
			"Tx":      func() (*ent.Tx, error) { return client.Tx(ctx) },
			"BeginTx": func() (*ent.Tx, error) { return client.BeginTx(ctx, nil) },
		} {
			tx, err := begin()
			if err != nil {
				t.Errorf("%s() = %v", id, err)
				return
			}
			if err := tx.Payment.Create().SetID(id).SetPayer("alice").SetAmount(7).Exec(ctx); err != nil {
				t.Errorf("Create() = %v", err)
			}
			if err := tx.Commit(); err != nil {
				t.Errorf("Commit() = %v", err)
			}
		}
		if c.Request.Header.Get("Idempotency-Key") == "fails" {
			c.AbortWithStatus(500)
		}
	})
	s.Want(s.Pay("fails", 100), 500, false)
	s.WantPayments()
	s.Want(s.Pay("k1", 100), 201, false)
	s.Want(s.Pay("k1", 100), 201, true)
	s.WantPayments(7, 7, 101)
}
