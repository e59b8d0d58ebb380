package tests

import (
	"context"
	"testing"
	"time"
)

// transport is how a client talks to an instance. Whatever moves money, the
// token for it and the look at what was moved go over it.
type transport interface {
	String() string
	// order asks for a payment. keys are sent as they are: none, or several, too.
	order(ctx context.Context, c client, r route, keys []string, o order) answer
	// token asks for a one-time token, which the answer holds where it is no refusal.
	token(ctx context.Context, c client) (token string, expires time.Time, a answer)
	// payments lists those with a note.
	payments(ctx context.Context, c client, note string) ([]payment, error)
	// balance of an account, in minor units.
	balance(ctx context.Context, c client, account string) (int64, error)
}

// route is what an order is sent to, by its name in HTTP's paths.
type route string

const (
	toPayments route = "payments" // with a key of the client's
	toTrades   route = "trades"   // with an issued token
)

// transports are those of the sample. The tests of the main flow run over each:
// what holds on one has to hold on the other.
var transports = []transport{overHTTP{}, overGRPC{}}

// forEachTransport runs a subtest per transport, one after the other: they may share
// what the test has started.
func forEachTransport(t *testing.T, f func(t *testing.T, via transport)) {
	t.Helper()
	for _, via := range transports {
		t.Run(via.String(), func(t *testing.T) { f(t, via) })
	}
}

// keyFor names a key, or a note, after its transport. Requests over different
// transports are different requests: they cannot share a key.
func keyFor(via transport, name string) string { return name + "-" + via.String() }

// running is a payment whose answer is to come.
type runningPayment struct {
	via  transport
	key  string // and note
	done <-chan answer
}

// startPayments starts a payment over each transport, so that all of them meet
// what the test is going to do to the instance.
func (in *instance) startPayments(name string) []runningPayment {
	all := make([]runningPayment, len(transports))
	for i, via := range transports {
		key := keyFor(via, name)
		all[i] = runningPayment{via, key, in.client(via).startPay(key, amount, key)}
	}
	return all
}

// startPaymentsUpTo is payOverEach, and returns when each payment has come to a step.
func (in *instance) startPaymentsUpTo(t testing.TB, name, step string) []runningPayment {
	t.Helper()
	all := in.startPayments(name)
	for _, r := range all {
		in.waitLog(t, step, logOp(r.key))
	}
	return all
}

// forEachPayment runs a subtest per payment, named as its transport.
func forEachPayment(t *testing.T, all []runningPayment, f func(t *testing.T, r runningPayment)) {
	t.Helper()
	for _, r := range all {
		t.Run(r.via.String(), func(t *testing.T) { f(t, r) })
	}
}
