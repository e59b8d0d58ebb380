package tests

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// openingBalances is the sum of a merchant's accounts. Payments between them do not
// change it.
const openingBalances = 3 * 1_000_000

// wantOnePayment looks at the ledger and fails the test unless there is exactly one
// payment with this note and the balances add up. It returns that payment.
func wantOnePayment(t testing.TB, c client, note string) payment {
	t.Helper()
	list := ledgerPayments(t, c, note)
	if len(list) != 1 {
		t.Fatalf("payments with note %q = %v, want exactly one", note, list)
	}
	return list[0]
}

// wantNoPayment fails the test if the ledger has a payment with this note.
func wantNoPayment(t testing.TB, c client, note string) {
	t.Helper()
	if list := ledgerPayments(t, c, note); len(list) != 0 {
		t.Fatalf("payments with note %q = %v, want none", note, list)
	}
}

func ledgerPayments(t testing.TB, c client, note string) []payment {
	t.Helper()
	list, err := c.listPayments(note)
	if err != nil {
		t.Fatalf("payments with note %q: %v", note, err)
	}
	if err := checkBalances(c); err != nil {
		t.Fatal(err)
	}
	return list
}

// checkBalances compares the sum of the balances with the opening one. It asks over
// HTTP, which lists all accounts in one read, since payments may run meanwhile.
func checkBalances(c client) error {
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

// wantPayment fails the test unless the answer is this payment, with all that its
// transport prescribes.
func wantPayment(t testing.TB, what string, a answer, want payment) {
	t.Helper()
	if !a.isPayment() || a.formErr != nil || a.payment != want {
		t.Fatalf("%s = %v, want the payment %v", what, a, want)
	}
}

// wantPaidOnce pays with retries. It fails the test unless the answer is the one
// payment that the ledger holds for the key.
func wantPaidOnce(t testing.TB, what string, c client, key string) answer {
	t.Helper()
	a := c.payWithRetries(key, amount, key)
	wantPayment(t, what, a, wantOnePayment(t, c, key))
	return a
}

// wantReplay is wantPayment for an answer that has to be marked as stored.
func wantReplay(t testing.TB, what string, a answer, want payment) {
	t.Helper()
	wantPayment(t, what, a, want)
	if !a.replayed {
		t.Errorf("%s = %v, want it marked as replayed", what, a)
	}
}

// wantRefusal fails the test unless the answer is a refusal with one of the codes,
// as its transport shows that (see problems).
func wantRefusal(t testing.TB, what string, a answer, codes ...string) {
	t.Helper()
	if !slices.ContainsFunc(codes, a.isRefusal) {
		t.Fatalf("%s = %v, want code %q", what, a, codes)
	}
}

// wantInProgress pays with a key whose lock another holder has, and returns the
// refusal. An instance without processor time for a moment does not trust its own
// session and answers unavailable. Then it is asked again.
func wantInProgress(t testing.TB, what string, c client, key string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		a := c.pay(key, amount, key)
		if !a.isRefusal("unavailable") {
			wantRefusal(t, what, a, "in-progress")
			return a
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s = %v for %v, want code in-progress", what, a, waitLimit)
		}
	}
}
