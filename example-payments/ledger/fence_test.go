package ledger_test

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
)

// Package fence tests which fences are refused. This is about the ledger's own transactions.
func TestFence(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		wantPaid := func(op string, f driver.Fence) {
			t.Helper()
			if _, err := pay(t, l, op, f); err != nil {
				t.Errorf("Pay(%q) under %v = %v", op, f, err)
			}
		}
		wantFenced := func(op string, f driver.Fence) {
			t.Helper()
			if _, err := pay(t, l, op, f); !errors.Is(err, payments.ErrFenced) {
				t.Errorf("Pay(%q) under %v = %v, want ErrFenced", op, f, err)
			}
		}
		wantFound := func(op string, f, doubt driver.Fence, want bool) {
			t.Helper()
			if found, err := settle(t, l, op, f, doubt); err != nil || (found != nil) != want {
				t.Errorf("Settle(%q) under %v = %v, %v, want a payment: %v", op, f, found, err, want)
			}
		}
		// A resolver that finds nothing shuts the earlier holder out.
		wantFound("lost", fence("a", 2), fence("a", 1), false)
		wantFenced("lost", fence("a", 1))
		wantPaid("lost", fence("a", 2))
		// A resolver of another domain finds the payment and ends the earlier domain.
		wantPaid("paid", fence("a", 7))
		wantFound("paid", fence("b", 1), fence("a", 7), true)
		wantFenced("paid", fence("a", 8))
		if _, err := settle(t, l, "paid", fence("a", 9), fence("a", 7)); !errors.Is(err, payments.ErrFenced) {
			t.Errorf("Settle by an earlier resolver = %v, want ErrFenced", err)
		}
		// The ledger removes no duplicates.
		wantPaid("twice", fence("a", 1))
		wantPaid("twice", fence("a", 1))
		if n := paymentCount(t, l); n != 4 {
			t.Errorf("%d payments, want 4", n)
		}
		wantBalancedBooks(t, l)
	})
}

// Instances of earlier builds have written to the table of fences, and may still do.
func TestFencesOfEarlierBuildsCount(t *testing.T) {
	for name, fresh := range map[string]func(*testing.T) string{"file": sqliteFile, "postgres": postgres} { // earlier builds know these
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := fresh(t)
			db, err := database.Open(dsn, database.Options{Create: true})
			if err != nil {
				t.Fatal(err)
			}
			for _, statement := range []string{
				"CREATE TABLE payment_fences (operation_id TEXT NOT NULL PRIMARY KEY, domain TEXT NOT NULL, token BIGINT NOT NULL, past TEXT NOT NULL)",
				"INSERT INTO payment_fences VALUES ('op', 'b', 9, 'null'), ('op 2', 'b', 9, '[\"a\"]')",
			} {
				if _, err := db.Write.Exec(statement); err != nil {
					t.Fatal(err)
				}
			}
			if err := db.Close(); err != nil {
				t.Fatal(err)
			}
			l := open(t, dsn, ledger.Shared)
			for op, f := range map[string]driver.Fence{"op": fence("b", 8), "op 2": fence("a", 10)} {
				if _, err := pay(t, l, op, f); !errors.Is(err, payments.ErrFenced) {
					t.Errorf("Pay(%q) under %v = %v, want ErrFenced", op, f, err)
				}
			}
			if _, err := pay(t, l, "op", fence("b", 9)); err != nil {
				t.Errorf("Pay under the fence of an earlier build = %v", err)
			}
		})
	}
}

func TestFenceThatCannotBeComparedIsRefused(t *testing.T) {
	l := open(t, "", ledger.Exclusive)
	for _, f := range []driver.Fence{{}, fence("", 1), fence("a", 0), fence("a", 1<<63)} {
		if _, err := pay(t, l, "op", f); err == nil {
			t.Errorf("Pay under %+v = nil, want an error", f)
		}
	}
	if n := paymentCount(t, l); n != 0 {
		t.Errorf("%d payments, want none", n)
	}
}

// A refused payment leaves its fence. Otherwise a paused holder could pay after a later
// holder has answered that there is no money.
func TestRefusedPaymentLeavesItsFence(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		p := payments.NewPayment("op", payments.Order{From: "alice", To: "bob", Amount: 2_000_000, Currency: "USD"}, now)
		var why *payments.Error
		if err := l.Pay(ctx(t), merchant, p, fence("a", 2)); !errors.As(err, &why) || why.Code != payments.CodeInsufficientFunds {
			t.Fatalf("Pay = %v, want insufficient-funds", err)
		}
		if _, err := pay(t, l, "op", fence("a", 1)); !errors.Is(err, payments.ErrFenced) {
			t.Errorf("Pay under a lower fence = %v, want ErrFenced", err)
		}
	})
}
