package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// openingBalances is what all accounts of a merchant hold together, whatever
// they pay each other.
const openingBalances = 3 * 1_000_000

// paidOnce looks at the ledger and fails the test unless there is exactly one
// payment with this note and the balances add up. It returns that payment.
func paidOnce(t testing.TB, c client, note string) payment {
	t.Helper()
	list := paid(t, c, note)
	if len(list) != 1 {
		t.Fatalf("payments with note %q = %v, want exactly one", note, list)
	}
	return list[0]
}

// paidNever is paidOnce for a payment that must not be there.
func paidNever(t testing.TB, c client, note string) {
	t.Helper()
	if list := paid(t, c, note); len(list) != 0 {
		t.Fatalf("payments with note %q = %v, want none", note, list)
	}
}

func paid(t testing.TB, c client, note string) []payment {
	t.Helper()
	list, err := c.payments(note)
	if err != nil {
		t.Fatalf("payments with note %q: %v", note, err)
	}
	if err := addUp(c); err != nil {
		t.Fatal(err)
	}
	return list
}

// addUp compares the balances with the opening ones. HTTP alone lists them all
// in one read: payments may run meanwhile.
func addUp(c client) error {
	var list struct {
		Accounts []struct {
			ID      string
			Balance int64
		}
	}
	if err := c.get(context.Background(), "/v1/accounts", &list); err != nil {
		return err
	}
	var sum int64
	for _, a := range list.Accounts {
		sum += a.Balance
	}
	if sum != openingBalances {
		return fmt.Errorf("balances %v add up to %d, want %d", list.Accounts, sum, openingBalances)
	}
	return nil
}

// original fails the test unless the answer is this payment, with all that its
// transport prescribes.
func original(t testing.TB, what string, a answer, want payment) {
	t.Helper()
	if !a.paid() || a.flaw != nil || a.payment != want {
		t.Fatalf("%s = %v, want the payment %v", what, a, want)
	}
}

// replayed is original for an answer that has to be marked as stored.
func replayed(t testing.TB, what string, a answer, want payment) {
	t.Helper()
	original(t, what, a, want)
	if !a.replayed {
		t.Errorf("%s = %v, want it marked as replayed", what, a)
	}
}

// refused fails the test unless the answer is a refusal with one of the codes,
// as its transport shows that (see problems).
func refused(t testing.TB, what string, a answer, codes ...string) {
	t.Helper()
	if !slices.ContainsFunc(codes, a.is) {
		t.Fatalf("%s = %v, want code %q", what, a, codes)
	}
}

// inProgress asks with a key whose lock somebody else holds. An instance that
// was starved for a moment does not trust its own session and says unavailable:
// then it is asked again. It returns the refusal.
func inProgress(t testing.TB, what string, c client, key string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		a := c.pay(key, amount, key)
		if !a.is("unavailable") {
			refused(t, what, a, "in-progress")
			return a
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s = %v for %v, want code in-progress", what, a, patience)
		}
	}
}
