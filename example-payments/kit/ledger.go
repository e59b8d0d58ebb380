package kit

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// OpeningBalances is the sum of a merchant's accounts. Payments between them do not
// change it.
const OpeningBalances = 3 * 1_000_000

// WantOnePayment looks at the ledger and fails the test unless there is exactly one
// payment with this note and the balances add up. It returns that payment.
func WantOnePayment(t testing.TB, c Client, note string) Payment {
	t.Helper()
	list := LedgerPayments(t, c, note)
	if len(list) != 1 {
		t.Fatalf("payments with note %q = %v, want exactly one", note, list)
	}
	return list[0]
}

// WantNoPayment fails the test if the ledger has a payment with this note.
func WantNoPayment(t testing.TB, c Client, note string) {
	t.Helper()
	if list := LedgerPayments(t, c, note); len(list) != 0 {
		t.Fatalf("payments with note %q = %v, want none", note, list)
	}
}

// LedgerPayments lists the payments with a note, and fails the test unless the balances add up.
func LedgerPayments(t testing.TB, c Client, note string) []Payment {
	t.Helper()
	list, err := c.ListPayments(note)
	if err != nil {
		t.Fatalf("payments with note %q: %v", note, err)
	}
	if err := CheckBalances(c); err != nil {
		t.Fatal(err)
	}
	return list
}

// CheckBalances compares the sum of the balances with the opening one. It asks over
// HTTP, which lists all accounts in one read, since payments may run meanwhile.
func CheckBalances(c Client) error {
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
	if sum != OpeningBalances {
		return fmt.Errorf("balances %v add up to %d, want %d", list.Accounts, sum, OpeningBalances)
	}
	return nil
}

// WantPayment fails the test unless the answer is this payment, with all that its
// transport prescribes.
func WantPayment(t testing.TB, what string, a Answer, want Payment) {
	t.Helper()
	if !a.IsPayment() || a.FormErr != nil || a.Payment != want {
		t.Fatalf("%s = %v, want the payment %v", what, a, want)
	}
}

// WantPaidOnce pays with retries. It fails the test unless the answer is the one
// payment that the ledger holds for the key.
func WantPaidOnce(t testing.TB, what string, c Client, key string) Answer {
	t.Helper()
	a := c.PayWithRetries(key, Amount, key)
	WantPayment(t, what, a, WantOnePayment(t, c, key))
	return a
}

// WantReplay is WantPayment for an answer that has to be marked as stored.
func WantReplay(t testing.TB, what string, a Answer, want Payment) {
	t.Helper()
	WantPayment(t, what, a, want)
	if !a.Replayed {
		t.Errorf("%s = %v, want it marked as replayed", what, a)
	}
}

// WantRefusal fails the test unless the answer is a refusal with one of the codes,
// as its transport shows that (see problems).
func WantRefusal(t testing.TB, what string, a Answer, codes ...string) {
	t.Helper()
	if !slices.ContainsFunc(codes, a.IsRefusal) {
		t.Fatalf("%s = %v, want code %q", what, a, codes)
	}
}

// WantInProgress pays with a key whose lock another holder has, and returns the
// refusal. An instance without processor time for a moment does not trust its own
// session and answers unavailable. Then it is asked again.
func WantInProgress(t testing.TB, what string, c Client, key string) Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), WaitLimit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		a := c.Pay(key, Amount, key)
		if !a.IsRefusal("unavailable") {
			WantRefusal(t, what, a, "in-progress")
			return a
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s = %v for %v, want code in-progress", what, a, WaitLimit)
		}
	}
}

// PayBefore pays over each transport what is asked for again during an outage.
func PayBefore(t *testing.T, in *Instance) map[Transport]Payment {
	t.Helper()
	paid := map[Transport]Payment{}
	for _, via := range Transports {
		key := KeyFor(via, "before")
		paid[via] = WantPaidOnce(t, "payment before the outage over "+via.String(), in.Client(via), key).Payment
	}
	return paid
}
