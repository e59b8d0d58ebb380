package tests

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// client is a merchant at one instance, over one transport.
type client struct {
	via       transport
	addr, rpc string // of the instance
	token     string // API key

	// Instead of a connection for each request: what adds keys and retries.
	roundTripper http.RoundTripper
	conn         *grpc.ClientConn
}

// client is the merchant that most tests are, over a transport.
func (in *instance) client(via transport) client {
	return client{via: via, addr: in.addr, rpc: in.rpc, token: "demo"}
}

// httpClient is over HTTP, for what asks questions only.
func (in *instance) httpClient() client { return in.client(overHTTP{}) }

// as is another merchant at the same place.
func (c client) as(token string) client {
	c.token = token
	return c
}

// order is the body of a payment request.
type order struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Note     string `json:"note"`
}

func (o order) body() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and ints always marshal
	}
	return string(b)
}

// payment is a payment as the service shows it.
type payment struct {
	ID string `json:"id"`
	order
	Status    string `json:"status"`
	CreatedAt string `json:"created_at"`
}

// fromAlice is an order from alice to bob.
func fromAlice(amount int64, note string) order { return order{"alice", "bob", amount, "USD", note} }

// pay sends an order from alice to bob.
func (c client) pay(key string, amount int64, note string) answer {
	return c.payWithContext(context.Background(), key, amount, note)
}

// payWithContext is pay for a client that may hang up.
func (c client) payWithContext(ctx context.Context, key string, amount int64, note string) answer {
	return c.send(ctx, toPayments, fromAlice(amount, note), key)
}

// trade is pay with an issued token.
func (c client) trade(token string, amount int64, note string) answer {
	return c.send(context.Background(), toTrades, fromAlice(amount, note), token)
}

// send sends any order, with any number of keys.
func (c client) send(ctx context.Context, r route, o order, keys ...string) answer {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	return c.via.order(ctx, c, r, keys, o)
}

// startPay is a pay that runs beside the test.
func (c client) startPay(key string, amount int64, note string) <-chan answer {
	done := make(chan answer, 1)
	go func() { done <- c.pay(key, amount, note) }()
	return done
}

// payWithRetries repeats a payment, as a client does, while the answer asks for it.
func (c client) payWithRetries(key string, amount int64, note string) answer {
	return withRetries(func() answer { return c.pay(key, amount, note) })
}

// tradeWithRetries is payWithRetries with an issued token.
func (c client) tradeWithRetries(token string, amount int64, note string) answer {
	return withRetries(func() answer { return c.trade(token, amount, note) })
}

// withRetries sends a request again while the answer asks for it.
func withRetries(send func() answer) (a answer) {
	_ = poll(2*waitLimit, func() error {
		if a = send(); a.asksToRetry() {
			return errNotYet
		}
		return nil
	})
	return a
}

// requestToken asks for a one-time token and returns the answer.
func (c client) requestToken() answer {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	_, _, a := c.via.token(ctx, c)
	return a
}

// issueToken asks for a one-time token.
func (c client) issueToken(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	token, expires, a := c.via.token(ctx, c)
	if a.err != nil || a.code != "" || a.formErr != nil || token == "" || time.Until(expires) <= 0 {
		t.Fatalf("token = %v until %v, want a token and when it expires", a, expires)
	}
	return token
}

// listPayments lists those with a note.
func (c client) listPayments(note string) ([]payment, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	return c.via.payments(ctx, c, note)
}

// keyState is the state of a key, over HTTP for keys of both transports.
func (c client) keyState(key string) (string, error) {
	a := c.request(context.Background(), http.MethodGet, "/v1/idempotency", "", http.Header{"Idempotency-Key": {key}})
	var s struct{ State string }
	if a.err == nil {
		a.err = json.Unmarshal([]byte(a.body), &s)
	}
	return s.State, a.err
}

// readiness asks /readyz.
func (c client) readiness() answer {
	return c.request(context.Background(), http.MethodGet, "/readyz", "", nil)
}

// transport is how a client talks to an instance: it pays, asks for tokens, and
// lists payments and balances over it.
type transport interface {
	String() string
	// order asks for a payment, with any number of keys as they are.
	order(ctx context.Context, c client, r route, keys []string, o order) answer
	// token asks for a one-time token.
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

// transports are those of the sample. The tests of the main flow run over each.
var transports = []transport{overHTTP{}, overGRPC{}}

// forEachTransport runs a subtest per transport, one after the other, so that they
// can share instances.
func forEachTransport(t *testing.T, f func(t *testing.T, via transport)) {
	t.Helper()
	for _, via := range transports {
		t.Run(via.String(), func(t *testing.T) { f(t, via) })
	}
}

// keyFor names a key, or a note, after its transport. Requests over two transports
// are two requests and cannot share a key.
func keyFor(via transport, name string) string { return name + "-" + via.String() }

// runningPayment is a payment whose answer is still to come.
type runningPayment struct {
	via  transport
	key  string // and note
	done <-chan answer
}

// startPayments starts a payment over each transport. All of them then meet the
// fault that the test injects into the instance.
func (in *instance) startPayments(name string) []runningPayment {
	all := make([]runningPayment, len(transports))
	for i, via := range transports {
		key := keyFor(via, name)
		all[i] = runningPayment{via, key, in.client(via).startPay(key, amount, key)}
	}
	return all
}

// startPaymentsUpTo is startPayments, and returns when each payment has logged a step.
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
