package kit

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"google.golang.org/grpc"
)

// Client is a merchant at one instance, over one transport.
type Client struct {
	Via       Transport
	Addr, RPC string // of the instance
	Token     string // API key

	// Instead of a connection for each request: what adds keys and retries.
	RoundTripper http.RoundTripper
	Conn         *grpc.ClientConn
}

// Client is the merchant that most tests are, over a transport.
func (in *Instance) Client(via Transport) Client {
	return Client{Via: via, Addr: in.Addr, RPC: in.RPC, Token: "demo"}
}

// HTTPClient is over HTTP, for what asks questions only.
func (in *Instance) HTTPClient() Client { return in.Client(OverHTTP{}) }

// As is another merchant at the same place.
func (c Client) As(token string) Client {
	c.Token = token
	return c
}

// Order is the body of a payment request.
type Order struct {
	From     string `json:"from"`
	To       string `json:"to"`
	Amount   int64  `json:"amount"`
	Currency string `json:"currency"`
	Note     string `json:"note"`
}

func (o Order) body() string {
	b, err := json.Marshal(o)
	if err != nil {
		panic(err) // strings and ints always marshal
	}
	return string(b)
}

// Payment is a payment as the service shows it.
type Payment struct {
	ID string `json:"id"`
	Order
	Status    string `json:"status"`
	CreatedAt string `json:"created_at"`
}

// FromAlice is an order from alice to bob.
func FromAlice(amount int64, note string) Order { return Order{"alice", "bob", amount, "USD", note} }

// Pay sends an order from alice to bob.
func (c Client) Pay(key string, amount int64, note string) Answer {
	return c.PayWithContext(context.Background(), key, amount, note)
}

// PayWithContext is pay for a client that may hang up.
func (c Client) PayWithContext(ctx context.Context, key string, amount int64, note string) Answer {
	return c.Send(ctx, ToPayments, FromAlice(amount, note), key)
}

// Trade is pay with an issued token.
func (c Client) Trade(token string, amount int64, note string) Answer {
	return c.Send(context.Background(), ToTrades, FromAlice(amount, note), token)
}

// Send sends any order, with any number of keys.
func (c Client) Send(ctx context.Context, r Route, o Order, keys ...string) Answer {
	ctx, cancel := context.WithTimeout(ctx, WaitLimit)
	defer cancel()
	return c.Via.Order(ctx, c, r, keys, o)
}

// StartPay is a pay that runs beside the test.
func (c Client) StartPay(key string, amount int64, note string) <-chan Answer {
	done := make(chan Answer, 1)
	go func() { done <- c.Pay(key, amount, note) }()
	return done
}

// PayWithRetries repeats a payment, as a client does, while the answer asks for it.
func (c Client) PayWithRetries(key string, amount int64, note string) Answer {
	return WithRetries(func() Answer { return c.Pay(key, amount, note) })
}

// TradeWithRetries is PayWithRetries with an issued token.
func (c Client) TradeWithRetries(token string, amount int64, note string) Answer {
	return WithRetries(func() Answer { return c.Trade(token, amount, note) })
}

// WithRetries sends a request again while the answer asks for it.
func WithRetries(send func() Answer) (a Answer) {
	_ = Poll(2*WaitLimit, func() error {
		if a = send(); a.AsksToRetry() {
			return ErrNotYet
		}
		return nil
	})
	return a
}

// RequestToken asks for a one-time token and returns the answer.
func (c Client) RequestToken() Answer {
	ctx, cancel := context.WithTimeout(context.Background(), WaitLimit)
	defer cancel()
	_, _, a := c.Via.token(ctx, c)
	return a
}

// IssueToken asks for a one-time token.
func (c Client) IssueToken(t testing.TB) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), WaitLimit)
	defer cancel()
	token, expires, a := c.Via.token(ctx, c)
	if a.Err != nil || a.Code != "" || a.FormErr != nil || token == "" || time.Until(expires) <= 0 {
		t.Fatalf("token = %v until %v, want a token and when it expires", a, expires)
	}
	return token
}

// ListPayments lists those with a note.
func (c Client) ListPayments(note string) ([]Payment, error) {
	ctx, cancel := context.WithTimeout(context.Background(), WaitLimit)
	defer cancel()
	return c.Via.payments(ctx, c, note)
}

// KeyState is the state of a key, over HTTP for keys of both transports.
func (c Client) KeyState(key string) (string, error) {
	a := c.Request(context.Background(), http.MethodGet, "/v1/idempotency", "", http.Header{"Idempotency-Key": {key}})
	var s struct{ State string }
	if a.Err == nil {
		a.Err = json.Unmarshal([]byte(a.Body), &s)
	}
	return s.State, a.Err
}

// Readiness asks /readyz.
func (c Client) Readiness() Answer {
	return c.Request(context.Background(), http.MethodGet, "/readyz", "", nil)
}

// Transport is how a client talks to an instance: it pays, asks for tokens, and
// lists payments and balances over it.
type Transport interface {
	String() string
	// order asks for a payment, with any number of keys as they are.
	Order(ctx context.Context, c Client, r Route, keys []string, o Order) Answer
	// token asks for a one-time token.
	token(ctx context.Context, c Client) (token string, expires time.Time, a Answer)
	// payments lists those with a note.
	payments(ctx context.Context, c Client, note string) ([]Payment, error)
	// balance of an account, in minor units.
	Balance(ctx context.Context, c Client, account string) (int64, error)
}

// Route is what an order is sent to, by its name in HTTP's paths.
type Route string

// The routes of the sample.
const (
	ToPayments Route = "payments" // with a key of the client's
	ToTrades   Route = "trades"   // with an issued token
)

// Transports are those of the sample. The tests of the main flow run over each.
var Transports = []Transport{OverHTTP{}, OverGRPC{}}

// ForEachTransport runs a subtest per transport, one after the other, so that they
// can share instances.
func ForEachTransport(t *testing.T, f func(t *testing.T, via Transport)) {
	t.Helper()
	for _, via := range Transports {
		t.Run(via.String(), func(t *testing.T) { f(t, via) })
	}
}

// KeyFor names a key, or a note, after its transport. Requests over two transports
// are two requests and cannot share a key.
func KeyFor(via Transport, name string) string { return name + "-" + via.String() }

// RunningPayment is a payment whose answer is still to come.
type RunningPayment struct {
	Via  Transport
	Key  string // and note
	Done <-chan Answer
}

// StartPayments starts a payment over each transport. All of them then meet the
// fault that the test injects into the instance.
func (in *Instance) StartPayments(name string) []RunningPayment {
	all := make([]RunningPayment, len(Transports))
	for i, via := range Transports {
		key := KeyFor(via, name)
		all[i] = RunningPayment{via, key, in.Client(via).StartPay(key, Amount, key)}
	}
	return all
}

// StartPaymentsUpTo is StartPayments, and returns when each payment has logged a step. A payment that was
// refused as unavailable before that is sent again, because the first calls of a process on a busy
// machine may take too long.
func (in *Instance) StartPaymentsUpTo(t testing.TB, name, step string) []RunningPayment {
	t.Helper()
	all := in.StartPayments(name)
	for i := range all {
		Eventually(t, fmt.Sprintf("step %q of %s", step, all[i].Key), func() error {
			if _, ok := in.Stderr.Find(step, LogOp(all[i].Key)); ok {
				return nil
			}
			select {
			case a := <-all[i].Done:
				if a.IsRefusal("unavailable") {
					all[i].Done = in.Client(all[i].Via).StartPay(all[i].Key, Amount, all[i].Key)
					break
				}
				answered := make(chan Answer, 1)
				answered <- a // the step may be the answer itself
				all[i].Done = answered
			default:
			}
			return ErrNotYet
		})
	}
	return all
}

// ForEachPayment runs a subtest per payment, named as its transport.
func ForEachPayment(t *testing.T, all []RunningPayment, f func(t *testing.T, r RunningPayment)) {
	t.Helper()
	for _, r := range all {
		t.Run(r.Via.String(), func(t *testing.T) { f(t, r) })
	}
}
