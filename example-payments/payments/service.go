package payments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// ledgerTimeout bounds the ledger's transaction, so that a handler ends even
// where the database does not answer.
const ledgerTimeout = 10 * time.Second

// Service executes payments. Its fields are set once, before it is used; it is
// then safe for concurrent use.
type Service struct {
	Ledger Ledger
	// Latency simulates a card network: half of it passes before the ledger
	// write, half after.
	Latency time.Duration
	// Log gets one line per step at debug level, as "at=before-ledger op=…",
	// for those who want to stop the process at one. Required.
	Log *slog.Logger
}

// Pay makes a payment for a merchant. ctx is that of an execution by an
// [idem.Engine]. The error is an [*Error] where the payment was refused; any
// other one leaves it open whether it was made, and wraps [ErrFenced],
// [idem.ErrLeaseLost] or [idem.ErrUnavailable] where that is the reason.
func (s *Service) Pay(ctx context.Context, merchant string, o Order) (Payment, error) {
	x, ok := idem.FromContext(ctx)
	if !ok {
		return Payment{}, idem.ErrNoExecution
	}
	s.at(ctx, "before-ledger", x)
	if err := sleep(ctx, s.Latency/2); err != nil {
		return Payment{}, err
	}
	left, err := idem.CheckOwner(ctx)
	if err != nil {
		return Payment{}, fmt.Errorf("payments: before the ledger: %w", err)
	}
	s.at(ctx, "checked", x)
	p := NewPayment(x.OperationID, o, time.Now())
	if err := s.write(ctx, merchant, p, x.Fence, left); err != nil {
		return Payment{}, err
	}
	s.at(ctx, "after-ledger", x)
	// The money has moved. However the wait ends, that is the answer.
	_ = sleep(ctx, s.Latency-s.Latency/2)
	return p, nil
}

// write is the irreversible step. It has to be over while the lease is
// trusted; the ledger's fence is what protects from a pause in the middle.
func (s *Service) write(ctx context.Context, merchant string, p Payment, f idem.Fence, left time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, min(left, ledgerTimeout))
	defer cancel()
	err := s.Ledger.Pay(bounded, merchant, p, f)
	if cause := context.Cause(ctx); cause != nil && bounded.Err() != nil && errors.Is(err, bounded.Err()) {
		return fmt.Errorf("%w: %w", err, cause) // a database says only that it was cancelled
	}
	return err
}

func (s *Service) at(ctx context.Context, step string, x idem.Execution) {
	s.Log.LogAttrs(ctx, slog.LevelDebug, "payment", slog.String("at", step),
		slog.String("op", x.OperationID), slog.Uint64("attempt", uint64(x.Attempt)), slog.String("fence", x.Fence.String()))
}

// sleep waits for d, or returns ctx's cause when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
