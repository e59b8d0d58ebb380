package tests

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/protobuf/proto"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
)

// retriedRun is a run of calls by several callers.
type retriedRun struct {
	t    testing.TB
	side retryingSide
	sent atomic.Int64  // attempts
	done chan struct{} // closed with the last call

	mu      sync.Mutex
	made    [retryingCallers]int
	replies map[string]retriedReply // by the note of the order
}

// start lets all callers call until enough is true of the number of calls that
// one has made.
func (run *retriedRun) start(in *instance, enough func(made int) bool) {
	run.t.Helper()
	run.done, run.replies = make(chan struct{}), map[string]retriedReply{}
	ctx, cancel := context.WithTimeout(context.Background(), retryLimit)
	pay := run.side.dial(run.t, in, &run.sent)
	var callers sync.WaitGroup
	for c := range retryingCallers {
		callers.Go(func() {
			for i := 0; ctx.Err() == nil && !enough(i); i++ {
				order := retriedOrder(c, i)
				run.note(c, order, pay(ctx, order))
			}
		})
	}
	go func() { callers.Wait(); close(run.done) }()
	run.t.Cleanup(func() { cancel(); <-run.done })
}

func (run *retriedRun) note(caller int, o *paymentsv1.CreatePaymentRequest, r retriedReply) {
	run.mu.Lock()
	defer run.mu.Unlock()
	run.made[caller]++
	run.replies[o.GetNote()] = r
}

// longest is the most calls that one caller has made.
func (run *retriedRun) longest() int {
	n := 0
	for _, made := range run.made {
		n = max(n, made)
	}
	return n
}

func (run *retriedRun) retries() int64 { return run.sent.Load() - int64(len(run.replies)) }

func (run *retriedRun) replayed() (n int) {
	for _, r := range run.replies {
		if r.replayed {
			n++
		}
	}
	return n
}

// opening is what each account of a new ledger holds.
var opening = map[string]int64{"alice": 1_000_000, "bob": 1_000_000, "carol": 1_000_000}

// retriedOrder is what a caller orders in its i-th call: payments in a circle,
// and among them some that cannot be.
func retriedOrder(caller, i int) *paymentsv1.CreatePaymentRequest {
	accounts := [...]string{"alice", "bob", "carol"}
	n := caller + i
	o := &paymentsv1.CreatePaymentRequest{From: accounts[n%3], To: accounts[(n+1)%3],
		Amount: int64(100*i + caller + 1), Currency: "USD", Note: fmt.Sprintf("call %d of caller %d", i, caller)}
	switch {
	case tooMuch(i):
		o.Amount = 3_000_001 // whatever the others pay each other, no account holds it
	case fromNowhere(i):
		o.From = "nobody"
	}
	return o
}

func tooMuch(i int) bool     { return i%6 == 2 }
func fromNowhere(i int) bool { return i%6 == 4 }

// audit compares what the calls returned with the ledger of the instance: one
// payment for each call that succeeded, and nothing else.
func (run *retriedRun) audit(in *instance) {
	run.t.Helper()
	ctx, cancel := context.WithTimeout(asDemo(context.Background()), patience)
	defer cancel()
	ledger := dialPayments(run.t, in)
	list, err := ledger.ListPayments(ctx, &paymentsv1.ListPaymentsRequest{Limit: 10_000})
	if err != nil || list.GetHasMore() {
		run.t.Fatalf("ListPayments() = %v, %v, want all of them", list, err)
	}
	paid := map[string][]*paymentsv1.Payment{} // by note
	for _, p := range list.GetPayments() {
		paid[p.GetNote()] = append(paid[p.GetNote()], p)
	}
	balances := maps.Clone(opening)
	for c, made := range run.made {
		for i := range made {
			o := retriedOrder(c, i)
			run.auditCall(o, run.want(i), paid[o.GetNote()])
			delete(paid, o.GetNote())
			if run.want(i) == run.side.paid {
				balances[o.GetFrom()] -= o.GetAmount()
				balances[o.GetTo()] += o.GetAmount()
			}
		}
	}
	if len(paid) > 0 {
		run.t.Errorf("payments of which no call knows: %v", paid)
	}
	for id, want := range balances {
		if got, err := ledger.GetAccount(ctx, &paymentsv1.GetAccountRequest{Id: id}); err != nil || got.GetBalance() != want {
			run.t.Errorf("GetAccount(%s) = %v, %v, want a balance of %d", id, got, err, want)
		}
	}
}

// want is the status of a caller's i-th call.
func (run *retriedRun) want(i int) string {
	switch {
	case tooMuch(i):
		return run.side.poor
	case fromNowhere(i):
		return run.side.unknown
	}
	return run.side.paid
}

// auditCall compares what a call returned with the order and with the payments
// that it has made.
func (run *retriedRun) auditCall(o *paymentsv1.CreatePaymentRequest, want string, made []*paymentsv1.Payment) {
	run.t.Helper()
	r := run.replies[o.GetNote()]
	if r.err != nil || r.status != want {
		run.t.Errorf("%s = %v, want %s", o.GetNote(), r, want)
	}
	if want != run.side.paid {
		if len(made) > 0 {
			run.t.Errorf("%s was refused (%v), and made %v", o.GetNote(), r, made)
		}
		return
	}
	if len(made) != 1 || !proto.Equal(r.payment, made[0]) {
		run.t.Errorf("%s = %v, and made %v, want just this one payment", o.GetNote(), r.payment, made)
		return
	}
	ordered := &paymentsv1.Payment{Id: made[0].GetId(), From: o.GetFrom(), To: o.GetTo(), Amount: o.GetAmount(),
		Currency: o.GetCurrency(), Note: o.GetNote(), Status: "succeeded", CreatedAt: made[0].GetCreatedAt()}
	if !proto.Equal(ordered, made[0]) {
		run.t.Errorf("%s made %v, want %v", o.GetNote(), made[0], ordered)
	}
}

// compare fails the test where a call was answered otherwise than in a run
// without kills.
func (run *retriedRun) compare(calm *retriedRun) {
	run.t.Helper()
	for note, got := range run.replies {
		want, ok := calm.replies[note]
		if !ok || got.String() != want.String() {
			run.t.Errorf("%s = %v, undisturbed %v", note, got, want)
		}
	}
}
