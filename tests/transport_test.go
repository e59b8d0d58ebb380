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

// overEach runs a subtest per transport, one after the other: they may share
// what the test has started.
func overEach(t *testing.T, f func(t *testing.T, via transport)) {
	t.Helper()
	for _, via := range transports {
		t.Run(via.String(), func(t *testing.T) { f(t, via) })
	}
}

// keyOver names a key, or a note, after its transport. Requests over different
// transports are different requests: they cannot share a key.
func keyOver(via transport, name string) string { return name + "-" + via.String() }

// running is a payment whose answer is to come.
type running struct {
	via  transport
	key  string // and note
	done <-chan answer
}

// payOverEach starts a payment over each transport, so that all of them meet
// what the test is going to do to the instance.
func (in *instance) payOverEach(name string) []running {
	all := make([]running, len(transports))
	for i, via := range transports {
		key := keyOver(via, name)
		all[i] = running{via, key, in.over(via).paying(key, amount, key)}
	}
	return all
}

// reachOverEach is payOverEach, and returns when each payment has come to a step.
func (in *instance) reachOverEach(t testing.TB, name, step string) []running {
	t.Helper()
	all := in.payOverEach(name)
	for _, r := range all {
		in.waitLog(t, step, op(r.key))
	}
	return all
}

// overEachOf runs a subtest per payment, named as its transport.
func overEachOf(t *testing.T, all []running, f func(t *testing.T, r running)) {
	t.Helper()
	for _, r := range all {
		t.Run(r.via.String(), func(t *testing.T) { f(t, r) })
	}
}
