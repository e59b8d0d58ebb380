package ledger_test

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
)

// step is one call, a payment or a resolver's Settle.
type step struct {
	settle bool
	fence  idem.Fence
	doubt  idem.Fence // of a settle
	fenced bool       // ErrFenced is wanted
	found  bool       // of a settle: a payment is wanted
}

func TestFence(t *testing.T) {
	pays := func(f idem.Fence) step { return step{fence: f} }
	refused := func(f idem.Fence) step { return step{fence: f, fenced: true} }
	looks := func(f, doubt idem.Fence, found bool) step {
		return step{settle: true, fence: f, doubt: doubt, found: found}
	}
	a, b, c := func(n uint64) idem.Fence { return fence("a", n) }, func(n uint64) idem.Fence { return fence("b", n) },
		func(n uint64) idem.Fence { return fence("c", n) }
	tests := map[string]struct {
		steps    []step
		payments int
	}{
		"a zombie after the resolver found nothing is refused":    {[]step{looks(a(2), a(1), false), refused(a(1))}, 0},
		"the resolver's own holder may pay after it":              {[]step{looks(a(2), a(1), false), pays(a(2))}, 1},
		"the resolver finds the payment":                          {[]step{pays(a(1)), looks(a(2), a(1), true)}, 1},
		"a lower resolver cannot tell":                            {[]step{pays(a(3)), {settle: true, fence: a(2), doubt: a(1), fenced: true}}, 1},
		"duplicates are not removed by the ledger":                {[]step{pays(a(1)), pays(a(1)), pays(a(2))}, 3},
		"a higher fence refuses a lower one":                      {[]step{pays(a(2)), refused(a(1))}, 1},
		"another domain succeeds, the old one is past":            {[]step{pays(a(9)), pays(b(1)), refused(a(10)), pays(b(2))}, 3},
		"a domain stays past after two successions":               {[]step{pays(a(1)), pays(b(1)), pays(c(1)), refused(a(5)), refused(b(5))}, 3},
		"a resolver of a new domain shuts the old one out":        {[]step{looks(b(1), a(7), false), refused(a(7)), refused(a(8)), pays(b(1))}, 1},
		"a resolver shuts out a domain beside the one kept":       {[]step{pays(c(1)), looks(b(1), a(7), true), refused(a(7)), refused(c(2))}, 1},
		"a resolver of a past domain cannot tell":                 {[]step{pays(a(1)), pays(b(1)), {settle: true, fence: a(2), doubt: a(1), fenced: true}}, 2},
		"a fence of the greatest token a database holds is taken": {[]step{pays(a(1<<63 - 1)), refused(a(1<<63 - 2))}, 1},
	}
	onEachDatabase(t, func(t *testing.T, database string) {
		l := open(t, database, ledger.Exclusive)
		total := 0
		for name, tt := range tests {
			t.Run(name, func(t *testing.T) {
				for i, s := range tt.steps {
					s.run(t, l, i, name)
				}
				if got := paymentCount(t, l) - total; got != tt.payments {
					t.Errorf("%d payments, want %d", got, tt.payments)
				}
				total = paymentCount(t, l)
				wantBalancedBooks(t, l)
			})
		}
	})
}

func (s step) run(t *testing.T, l *ledger.Ledger, i int, op string) {
	t.Helper()
	var err error
	var found *payments.Payment
	if s.settle {
		found, err = l.Settle(ctx(t), op, s.fence, s.doubt)
	} else {
		_, err = pay(t, l, op, s.fence)
	}
	if got := errors.Is(err, payments.ErrFenced); got != s.fenced || !s.fenced && err != nil {
		t.Errorf("step %d with fence %v: %v, want ErrFenced: %v", i, s.fence, err, s.fenced)
	}
	if got := found != nil; got != s.found {
		t.Errorf("step %d with fence %v found a payment: %v, want %v", i, s.fence, got, s.found)
	}
}

func TestFenceThatCannotBeComparedIsRefused(t *testing.T) {
	l := open(t, "", ledger.Exclusive)
	for _, f := range []idem.Fence{{}, fence("", 1), fence("a", 0), fence("a", 1<<63)} {
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
