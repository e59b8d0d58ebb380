package payments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// ledgerTimeout bounds the ledger's transaction, so that a handler ends even if the database
// does not answer.
const ledgerTimeout = 10 * time.Second

// Service executes payments. Set its fields before its first use. Then it is safe
// for concurrent use.
type Service struct {
	Ledger Ledger
	// Latency simulates a card network. Half of it passes before the ledger
	// write, and half after.
	Latency time.Duration
	// LatencyFirst has all of it pass before the ledger write. A joined transaction
	// would lock the accounts in the second half.
	LatencyFirst bool
	// Crash ends the process in the middle of a charge from [WithCrash]. Without it such a charge
	// only fails.
	Crash func()
	// Step, if set, is told of each step of a charge, such as "before-ledger".
	Step func(ctx context.Context, step string, x idem.Execution)
	// Log gets one line per step at debug level, such as "at=before-ledger op=…".
	// Tests wait for a step and stop the process there. Required.
	Log *slog.Logger
}

// Pay makes a payment for a merchant. ctx comes from an execution by an
// [idem.Engine]. An [*Error] means that the payment was refused. After any other
// error the payment may or may not have been made. Such an error wraps [ErrFenced],
// [driver.ErrLeaseLost] or [driver.ErrUnavailable] if that is the reason.
func (s *Service) Pay(ctx context.Context, merchant string, o Order) (Payment, error) {
	x, ok := idem.FromContext(ctx)
	if !ok {
		return Payment{}, idem.ErrNoExecution
	}
	s.at(ctx, "before-ledger", x)
	before := s.Latency / 2
	if s.LatencyFirst {
		before = s.Latency
	}
	if err := sleep(ctx, before); err != nil {
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
	if err := s.crash(ctx); err != nil {
		return Payment{}, err
	}
	// The money has moved. A cancelled wait does not change the answer.
	_ = sleep(ctx, s.Latency-before)
	return p, nil
}

// write is the irreversible step. It must end while the lease is trusted. The
// ledger's fence protects the money if the process pauses in the middle.
func (s *Service) write(ctx context.Context, merchant string, p Payment, f driver.Fence, left time.Duration) error {
	bounded, cancel := context.WithTimeout(ctx, min(left, ledgerTimeout))
	defer cancel()
	err := s.Ledger.Pay(bounded, merchant, p, f)
	if cause := context.Cause(ctx); cause != nil && bounded.Err() != nil && errors.Is(err, bounded.Err()) {
		return fmt.Errorf("%w: %w", err, cause) // a database reports only that it was cancelled
	}
	return err
}

func (s *Service) at(ctx context.Context, step string, x idem.Execution) {
	if s.Step != nil {
		s.Step(ctx, step, x)
	}
	s.Log.LogAttrs(ctx, slog.LevelDebug, "payment", slog.String("at", step),
		slog.String("op", x.OperationID), slog.Uint64("attempt", uint64(x.Attempt)), slog.String("fence", x.Fence.String()))
}

// sleep waits for d, or returns ctx's cause if ctx ends first.
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

// Answer makes the stored answer to a payment, exactly as the handler of the route
// gives it.
type Answer func(route string, p Payment) (idem.Response, error)

// LedgerResolver settles interrupted payments by a look at the ledger. It raises
// the ledger's fence to its own in the same transaction, so that "not applied" stays
// true. If the ledger refuses the fence, a later holder is at work and the outcome
// stays unknown.
//
// private means that each instance has a ledger of its own while the instances share
// the keys. A payment that is missing in this ledger may then be in another.
func LedgerResolver(l Ledger, private bool, answer Answer) idem.Resolver {
	return func(ctx context.Context, in idem.Interrupted) (idem.Resolution, error) {
		p, err := l.Settle(ctx, in)
		switch {
		case err != nil:
			return idem.StillUnknown(), err
		case p == nil && private:
			return idem.StillUnknown(), nil
		case p == nil:
			return idem.NotApplied(), nil
		}
		r, err := answer(in.Route, *p)
		if err != nil {
			return idem.StillUnknown(), err
		}
		return idem.Applied(r), nil
	}
}
