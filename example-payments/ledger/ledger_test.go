package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 123456789, time.UTC)

func TestPaymentReadsBackAsItWasMade(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		made := payments.NewPayment("op", payments.Order{From: "alice", To: "bob", Amount: 7, Currency: "USD", Note: "é <&>\n"}, now)
		if err := l.Pay(ctx(t), merchant, made, fence("a", 1)); err != nil {
			t.Fatal(err)
		}
		got, err := l.Payment(ctx(t), merchant, made.ID)
		if err != nil || got != made {
			t.Errorf("Payment(%q) = %+v, %v, want %+v", made.ID, got, err, made)
		}
		found, err := settle(t, l, "op", fence("a", 2), fence("a", 1))
		if err != nil || found == nil || *found != made {
			t.Errorf("Settle = %+v, %v, want %+v", found, err, made)
		}
		again := payments.NewPayment("op", made.Order, now)
		if err := l.Pay(ctx(t), merchant, again, fence("a", 3)); err != nil {
			t.Fatal(err)
		}
		list, err := l.MadeBy(ctx(t), "op")
		if err != nil || !slices.Equal(list, []ledger.Made{{Merchant: merchant, Payment: made}, {Merchant: merchant, Payment: again}}) {
			t.Errorf("MadeBy = %+v, %v, want both payments in their order", list, err)
		}
		if list, err := l.MadeBy(ctx(t), "another"); len(list) != 0 || err != nil {
			t.Errorf("MadeBy another operation = %+v, %v, want none", list, err)
		}
		if _, err := l.Payment(ctx(t), "another merchant", made.ID); code(err) != payments.CodePaymentUnknown {
			t.Errorf("another merchant's Payment = %v, want payment-unknown", err)
		}
	})
}

func TestRefusals(t *testing.T) {
	tests := map[string]struct {
		order payments.Order
		want  payments.Code
	}{
		"no such payer":      {payments.Order{From: "zoe", To: "bob", Amount: 1, Currency: "USD"}, payments.CodeAccountUnknown},
		"no such payee":      {payments.Order{From: "bob", To: "zoe", Amount: 1, Currency: "USD"}, payments.CodeAccountUnknown},
		"another currency":   {payments.Order{From: "bob", To: "alice", Amount: 1, Currency: "EUR"}, payments.CodeCurrencyMismatch},
		"one cent too much":  {payments.Order{From: "bob", To: "alice", Amount: 1_000_001, Currency: "USD"}, payments.CodeInsufficientFunds},
		"the greatest order": {payments.Order{From: "bob", To: "alice", Amount: payments.MaxAmount, Currency: "USD"}, payments.CodeInsufficientFunds},
	}
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		for name, tt := range tests {
			err := l.Pay(ctx(t), merchant, payments.NewPayment(name, tt.order, now), fence("a", 1))
			if code(err) != tt.want {
				t.Errorf("%s: Pay = %v, want %s", name, err, tt.want)
			}
		}
		if n := paymentCount(t, l); n != 0 {
			t.Errorf("%d payments, want none", n)
		}
		wantBalancedBooks(t, l)
	})
}

func TestListsAreTheMerchantsOwnNewestFirst(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		if err := l.AddMerchant(ctx(t), "other"); err != nil {
			t.Fatal(err)
		}
		order := payments.Order{From: "alice", To: "bob", Amount: 1, Currency: "USD"}
		for i, m := range []string{merchant, "other", merchant, merchant} {
			order.Note = fmt.Sprintf("note %d", i%3)
			if err := l.Pay(ctx(t), m, payments.NewPayment(fmt.Sprint(i), order, now), fence("a", 1)); err != nil {
				t.Fatal(err)
			}
		}
		ops := func(q payments.Query) string {
			list, err := l.Payments(ctx(t), merchant, q)
			if err != nil {
				t.Fatal(err)
			}
			var s strings.Builder
			for _, p := range list {
				s.WriteString(p.OperationID)
			}
			return s.String()
		}
		note := "note 0"
		if got := ops(payments.Query{Limit: 10}); got != "320" {
			t.Errorf("all: operations %s, want 320", got)
		}
		if got := ops(payments.Query{Note: &note, Limit: 10}); got != "30" {
			t.Errorf("with a note: operations %s, want 30", got)
		}
		if got := ops(payments.Query{Limit: 1}); got != "3" {
			t.Errorf("one: operations %s, want 3", got)
		}
	})
}

func TestTextsThatNoDatabaseHoldsAreNotThere(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		for _, text := range []string{"\x00", "\xff"} {
			if _, err := l.Payment(ctx(t), merchant, text); code(err) != payments.CodePaymentUnknown {
				t.Errorf("Payment(%q) = %v, want payment-unknown", text, err)
			}
			if _, err := l.Account(ctx(t), merchant, text); code(err) != payments.CodeAccountUnknown {
				t.Errorf("Account(%q) = %v, want account-unknown", text, err)
			}
			if list, err := l.Payments(ctx(t), merchant, payments.Query{Note: &text, Limit: 1}); err != nil || len(list) != 0 {
				t.Errorf("Payments(%q) = %v, %v, want none", text, list, err)
			}
		}
	})
}

func TestMoneyStaysTheSameUnderContention(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		accounts := []string{"alice", "bob", "carol"}
		var wg sync.WaitGroup
		for w := range 8 {
			wg.Go(func() {
				for i := range 20 {
					o := payments.Order{From: accounts[(w+i)%3], To: accounts[(w+2*i+1)%3], Amount: 17, Currency: "USD"}
					if o.From == o.To {
						continue
					}
					p := payments.NewPayment(fmt.Sprintf("%d-%d", w, i), o, now)
					if err := l.Pay(ctx(t), merchant, p, fence("a", 1)); err != nil {
						t.Errorf("Pay = %v", err)
					}
					wantBalancedBooks(t, l)
				}
			})
		}
		wg.Wait()
		list, err := l.Accounts(ctx(t), merchant)
		if err != nil || len(list) != 3 {
			t.Fatalf("Accounts = %v, %v", list, err)
		}
		if sum := list[0].Balance + list[1].Balance + list[2].Balance; sum != 3_000_000 {
			t.Errorf("accounts hold %d, want 3000000", sum)
		}
	})
}

// Package sql drops connections of cancelled transactions. The embedded ledger must
// outlive each of them.
func TestCancelledPaymentsLoseNothing(t *testing.T) {
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*50*time.Microsecond)
				defer cancel()
				o := payments.Order{From: "alice", To: "bob", Amount: 1, Currency: "USD"}
				_ = l.Pay(ctx, merchant, payments.NewPayment(fmt.Sprint(i), o, now), fence("a", 1))
			})
		}
		wg.Wait()
		wantBalancedBooks(t, l)
		if a, err := l.Account(ctx(t), merchant, "carol"); err != nil || a.Balance != 1_000_000 {
			t.Errorf("Account(carol) = %+v, %v, want it untouched", a, err)
		}
	})
}

func TestReopenedDatabaseKeepsItsLedger(t *testing.T) {
	for name, database := range lastingDatabases {
		t.Run(name, func(t *testing.T) {
			dsn := database(t)
			l, err := ledger.Open(ctx(t), dsn, ledger.Exclusive)
			if err != nil {
				t.Fatal(err)
			}
			if err := l.AddMerchant(ctx(t), merchant); err != nil {
				t.Fatal(err)
			}
			if _, err := pay(t, l, "op", fence("a", 1)); err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			again := open(t, dsn, ledger.Exclusive)
			if a, err := again.Account(ctx(t), merchant, "alice"); err != nil || a.Balance != 999_900 {
				t.Errorf("Account(alice) = %+v, %v, want 999900", a, err)
			}
			if _, err := pay(t, again, "op", fence("b", 1)); err != nil {
				t.Errorf("Pay in a new domain = %v", err)
			}
			if _, err := pay(t, again, "op", fence("a", 2)); !errors.Is(err, payments.ErrFenced) {
				t.Errorf("Pay in the old domain = %v, want ErrFenced", err)
			}
		})
	}
}

func TestWrongDatabasesAreRefused(t *testing.T) {
	for _, dsn := range []string{"sqlite:", "mysql://x", "mysql://127.0.0.1:1/x", "x", "sqlite:/nowhere/at/all.db", "sqlite:" + t.TempDir(),
		"postgres://127.0.0.1:1/x"} {
		l, err := ledger.Open(ctx(t), dsn, ledger.Exclusive)
		if err == nil {
			l.Close()
			t.Errorf("Open(%q) = nil, want an error", dsn)
		} else if !strings.Contains(err.Error(), "ledger: ") {
			t.Errorf("Open(%q) = %v, want an error of the package", dsn, err)
		}
	}
}

func code(err error) payments.Code {
	if e, ok := errors.AsType[*payments.Error](err); ok {
		return e.Code
	}
	return ""
}
