package load

import (
	"context"
	"database/sql"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/examples/ownhandlers"
)

// ownDatabase is the pool of a service that keeps keys in a table of its own.
func (s *service) ownDatabase(ctx context.Context) (*business, error) {
	b, err := s.postgres(ctx)
	if err != nil {
		return nil, err
	}
	return b, ownhandlers.Migrate(ctx, b.db)
}

// ownFlow is the business transaction in a handler that a team writes by hand.
func ownFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, err := s.ownDatabase(ctx)
	if err != nil {
		return nil, err
	}
	payments := &ownhandlers.Payments{DB: b.db, Pay: func(ctx context.Context, tx *sql.Tx, _ []byte) (ownhandlers.Answer, error) {
		s.runs.Add(1)
		return ownhandlers.Answer{Status: http.StatusCreated, Body: []byte(receipt)}, b.transfer(ctx, execute(tx))
	}}
	return []gin.HandlerFunc{payments.Handle}, nil
}

// ownBankFlow is such a handler that calls a bank before the business transaction. The bank answers at once.
func ownBankFlow(ctx context.Context, s *service) ([]gin.HandlerFunc, error) {
	b, err := s.ownDatabase(ctx)
	if err != nil {
		return nil, err
	}
	payments := &ownhandlers.BankPayments{
		DB: b.db,
		Charge: func(context.Context, string, []byte) (ownhandlers.Answer, error) {
			s.runs.Add(1)
			return ownhandlers.Answer{Status: http.StatusCreated, Body: []byte(receipt)}, nil
		},
		Record: func(ctx context.Context, tx *sql.Tx, _ []byte, _ ownhandlers.Answer) error {
			return b.transfer(ctx, execute(tx))
		},
	}
	return []gin.HandlerFunc{payments.Handle}, nil
}
