package server_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// gate stops its callers until it is opened.
type gate struct{ reached, open chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 10), make(chan struct{})} }

func (g gate) pass(context.Context) error {
	g.reached <- struct{}{}
	<-g.open
	return nil
}

func keyID(key string) driver.KeyID { return idem.NewKeyID("merchant_demo", idem.Key(key)) }

func TestDuplicateWhileTheFirstRuns(t *testing.T) {
	for _, wait := range []time.Duration{0, 20 * time.Second} {
		t.Run(wait.String(), func(t *testing.T) {
			b := newBench(t)
			g := newGate()
			b.ledger.before = g.pass
			c := b.instance(t, func(cfg *server.Config) { cfg.Wait = wait })
			answers := make([]answer, 4)
			var wg sync.WaitGroup
			wg.Go(func() { answers[0] = c.pay("k", order) })
			<-g.reached
			if got := c.state("k"); got != "pending" {
				t.Errorf("state %q, want pending", got)
			}
			c.pay("k", strings.Replace(order, "1250", "1", 1)).wantAnswer(t, "another request", 422, "key-reused")
			if wait == 0 {
				a := c.pay("k", order)
				a.wantAnswer(t, "duplicate", 409, "in-progress")
				if a.header.Get("Retry-After") == "" {
					t.Error("409 without Retry-After")
				}
			} else {
				for i := 1; i < len(answers); i++ {
					wg.Go(func() { answers[i] = c.pay("k", order) })
				}
			}
			close(g.open)
			wg.Wait()
			for i, a := range answers {
				if (i == 0 || wait > 0) && (a.status != 201 || a.body != answers[0].body) {
					t.Errorf("answer %d: %d %s, want 201 %s", i, a.status, a.body, answers[0].body)
				}
			}
			if n := c.payments(); n != 1 {
				t.Errorf("%d payments, want 1", n)
			}
		})
	}
}

// The ledger fails before or after the payment, and the client retries.
func TestOutcomeInDoubt(t *testing.T) {
	broken := func(context.Context) error { return errors.New("connection lost") }
	once := func(b *bench) func(context.Context) error {
		return func(context.Context) error {
			b.ledger.before, b.ledger.after = nil, nil
			return errors.New("connection lost")
		}
	}
	t.Run("after the effect, the resolver finds it", func(t *testing.T) {
		b, c := setup(t)
		b.ledger.after = once(b)
		first := c.pay("k", order)
		again := c.pay("k", order)
		if again.status != 201 || again.header.Get("Content-Type") != "application/json" ||
			again.header.Get("Location") != "/v1/payments/"+again.field("id") {
			t.Errorf("repeat after %d: %d %v %s, want 201 as if nothing had been", first.status, again.status, again.header, again.body)
		}
		if got := c.do("GET", again.header.Get("Location"), "").body; got != again.body {
			t.Errorf("the payment is %s, want %s", got, again.body)
		}
		if n := c.payments(); n != 1 {
			t.Errorf("%d payments, want 1", n)
		}
	})
	t.Run("before the effect, the resolver says so", func(t *testing.T) {
		b, c := setup(t)
		b.ledger.before = once(b)
		c.pay("k", order)
		c.pay("k", order).wantAnswer(t, "repeat", 201, "")
		if n := c.payments(); n != 1 {
			t.Errorf("%d payments, want 1", n)
		}
	})
	t.Run("without a resolver it stays unknown", func(t *testing.T) {
		b := newBench(t)
		b.ledger.after = broken
		c := b.instance(t, func(cfg *server.Config) { cfg.Resolver = nil })
		first := c.pay("k", order)
		first.wantAnswer(t, "first", 503, "ledger-unavailable")
		c.pay("k", order).wantAnswer(t, "repeat", 409, "outcome-unknown")
		if got := c.state("k"); got != "unknown" {
			t.Errorf("state %q, want unknown", got)
		}
		if n := c.payments(); n != 1 {
			t.Errorf("%d payments, want 1", n)
		}
	})
	t.Run("a panic is in doubt", func(t *testing.T) {
		b := newBench(t)
		b.ledger.after = func(context.Context) error { panic("broken") }
		c := b.instance(t, func(cfg *server.Config) { cfg.Resolver = nil })
		c.pay("k", order).wantAnswer(t, "first", 500, "internal")
		if got := c.state("k"); got != "unknown" {
			t.Errorf("state %q, want unknown", got)
		}
	})
}

func TestLockLostBeforeTheLedger(t *testing.T) {
	b := newBench(t)
	c := b.instance(t, func(cfg *server.Config) {
		cfg.Service.Latency = time.Hour // only the loss of the lock ends it
		cfg.Resolver = nil
	})
	done := make(chan answer, 1)
	go func() { done <- c.pay("k", order) }()
	for c.state("k") != "pending" { // the handler runs: it has begun
		if t.Context().Err() != nil {
			t.Fatal("no attempt began")
		}
	}
	b.locker.Revoke(keyID("k"))
	(<-done).wantAnswer(t, "payment", 503, "ownership-lost")
	if n := c.payments(); n != 0 {
		t.Errorf("%d payments, want none", n)
	}
}

func TestLockLostInTheLedger(t *testing.T) {
	b := newBench(t)
	writing := make(chan struct{})
	b.ledger.before = func(ctx context.Context) error {
		close(writing)
		<-ctx.Done()
		return ctx.Err() // as package sql does
	}
	c := b.instance(t, func(cfg *server.Config) { cfg.Resolver = nil })
	done := make(chan answer, 1)
	go func() { done <- c.pay("k", order) }()
	<-writing
	b.locker.Revoke(keyID("k"))
	(<-done).wantAnswer(t, "payment", 503, "ownership-lost")
}

// A holder is paused right before its ledger write and loses its lock. Another instance
// settles and pays, and the paused one wakes up.
func TestZombieIsRefusedByTheLedger(t *testing.T) {
	b := newBench(t)
	g := newGate()
	slow := *b
	slow.ledger = &hooked{Ledger: b.sql, before: g.pass}
	zombie, other := slow.instance(t, nil), b.instance(t, nil)
	done := make(chan answer, 1)
	go func() { done <- zombie.pay("k", order) }()
	<-g.reached
	b.locker.Revoke(keyID("k"))
	second := other.pay("k", order)
	second.wantAnswer(t, "second holder", 201, "")
	close(g.open)
	first := <-done
	if first.status != 503 && first.body != second.body {
		t.Errorf("zombie: %d %s, want 503 or %s", first.status, first.body, second.body)
	}
	if n := other.payments(); n != 1 {
		t.Errorf("%d payments, want 1", n)
	}
	if again := zombie.pay("k", order); again.body != second.body || !again.replayed() {
		t.Errorf("repeat: %d %s, want %s replayed", again.status, again.body, second.body)
	}
}

func TestPaymentOutlivesItsClient(t *testing.T) {
	b := newBench(t)
	g := newGate()
	b.ledger.before = g.pass
	c := b.instance(t, nil)
	ctx, hangUp := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		_, err := c.try(ctx, "POST", "/v1/payments", order, "Idempotency-Key", "k")
		gone <- err
	}()
	<-g.reached
	hangUp()
	if err := <-gone; err == nil {
		t.Fatal("the client was answered before it hung up")
	}
	close(g.open)
	for c.state("k") == "pending" {
		if t.Context().Err() != nil {
			t.Fatal("the payment did not end")
		}
	}
	if a := c.pay("k", order); a.status != 201 || !a.replayed() {
		t.Errorf("repeat: %d %s, want 201 replayed", a.status, a.body)
	}
	if n := c.payments(); n != 1 {
		t.Errorf("%d payments, want 1", n)
	}
}
