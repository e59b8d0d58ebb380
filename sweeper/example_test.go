package sweeper_test

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/sweeper"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A service starts a sweeper beside its routes. It asks the resolver of each route, until the
// context ends.
func ExampleNew() {
	start := func(ctx context.Context, engine *idem.Engine, payments idem.Policy) error {
		s, err := sweeper.New(engine, []idem.Policy{payments}, sweeper.WithObserver(func(_ context.Context, p sweeper.Pass) {
			if p.Err != nil {
				slog.Warn("sweep", "error", p.Err)
			}
		}))
		if err != nil {
			return err
		}
		go s.Run(ctx)
		return nil
	}
	_ = start // it runs for as long as the service
}

// The process that paid died before it could store the outcome, and its client does not come back.
// The sweeper asks the resolver, and settles the payment.
func ExampleSweeper_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	store := memorystore.New()
	engine, err := idem.New(memorylock.New(), store)
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Name: "pay", InDoubt: idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
		return idem.Applied(idem.Response{Body: []byte("pay_1")}), nil // a real one looks in.OperationID up
	})}
	// What the process has left.
	id := idem.NewKeyID("merchant_1", "order-1001")
	domain, err := engine.DomainOf(ctx, id)
	if err != nil {
		panic(err)
	}
	if _, err := store.Begin(ctx, id, driver.BeginRequest{Route: "pay", Fence: driver.Fence{Domain: domain, Token: 1}, Nonce: driver.NewNonce(), KeyTTL: time.Hour}); err != nil {
		panic(err)
	}

	settled := make(chan int, 1)
	s, err := sweeper.New(engine, []idem.Policy{policy}, sweeper.WithMinAge(0), sweeper.WithInterval(10*time.Millisecond),
		sweeper.WithObserver(func(_ context.Context, p sweeper.Pass) {
			if p.Applied > 0 {
				settled <- p.Applied
			}
		}))
	if err != nil {
		panic(err)
	}
	go s.Run(ctx)
	count := <-settled
	rec, err := store.Get(ctx, id)
	fmt.Println(count, "payment settled:", rec.State, err)
	// Output: 1 payment settled: completed <nil>
}
