package stripe_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	stripego "github.com/stripe/stripe-go/v85"

	"github.com/idemkeeper/idemkeeper/examples/stripe"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

const documentation = "https://example.com/docs/keys"

// service is a server that speaks Stripe's API, and stripe-go as its client.
type service struct {
	engine   *idem.Engine
	client   *stripego.Client
	runs     atomic.Int64 // of the handler
	requests atomic.Int64 // that reached the server
	arrived  chan int64   // the number of each request, when it arrives
}

func start(t *testing.T, handler http.HandlerFunc) *service {
	t.Helper()
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	s := &service{engine: engine, arrived: make(chan int64, 100)}
	protect := idemhttp.MustNew(engine, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()},
		exchange.Config{Methods: []string{http.MethodPost}, Refuse: stripe.Refusals(documentation)})
	protected := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.runs.Add(1)
		handler(w, r)
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.arrived <- s.requests.Add(1)
		protected.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.client = stripego.NewClient("sk_test_123", stripego.WithBackends(stripego.NewBackendsWithConfig(&stripego.BackendConfig{
		URL:               stripego.String(server.URL),
		HTTPClient:        server.Client(),
		LeveledLogger:     &stripego.LeveledLogger{Level: stripego.LevelNull},
		MaxNetworkRetries: stripego.Int64(3),
	})))
	return s
}

// created answers with an object that tells how often it was made.
func (s *service) created(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"id":"pi_%d","object":"payment_intent","amount":%s}`, s.runs.Load(), r.FormValue("amount"))
}

func (s *service) pay(key string, amount int64) (*stripego.PaymentIntent, error) {
	params := &stripego.PaymentIntentCreateParams{Amount: new(amount), Currency: new("usd")}
	if key != "" {
		params.SetIdempotencyKey(key)
	}
	return s.client.V1PaymentIntents.Create(context.Background(), params)
}

// wantError checks what stripe-go made of a refusal, and how often it has asked.
func (s *service) wantError(t *testing.T, err error, status int, kind stripego.ErrorType, code idem.Code, requests int64) {
	t.Helper()
	e, ok := errors.AsType[*stripego.Error](err)
	if !ok {
		t.Fatalf("error = %T %v, want a *stripe.Error", err, err)
	}
	wantCode := strings.ReplaceAll(string(code), "-", "_")
	if e.HTTPStatusCode != status || e.Type != kind || string(e.Code) != wantCode || !strings.Contains(e.Msg, code.Detail()) ||
		e.DocURL != documentation+"#"+string(code) {
		t.Errorf("error = %v, want %d %s %s", e, status, kind, wantCode)
	}
	if got := s.requests.Load(); got != requests {
		t.Errorf("stripe-go sent %d requests, want %d", got, requests)
	}
}

func TestStripeGoGetsTheFirstAnswerAgain(t *testing.T) {
	var s *service
	s = start(t, func(w http.ResponseWriter, r *http.Request) { s.created(w, r) })
	for range 2 {
		if got, err := s.pay("k1", 1250); err != nil || got.ID != "pi_1" || got.Amount != 1250 {
			t.Errorf("payment = %+v, %v, want pi_1 of 1250", got, err)
		}
	}
	if got, err := s.pay("", 1250); err != nil || got.ID != "pi_2" { // with a key that stripe-go makes
		t.Errorf("payment = %+v, %v, want pi_2", got, err)
	}
}

func TestStripeGoReadsWithoutAKey(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, `{"id":"pi_1","amount":1250}`) })
	if got, err := s.client.V1PaymentIntents.Retrieve(t.Context(), "pi_1", nil); err != nil || got.Amount != 1250 {
		t.Errorf("Retrieve() = %+v, %v", got, err)
	}
}

func TestStripeGoDoesNotRepeatAKeyUsedForAnotherRequest(t *testing.T) {
	var s *service
	s = start(t, func(w http.ResponseWriter, r *http.Request) { s.created(w, r) })
	if _, err := s.pay("k1", 1250); err != nil {
		t.Fatal(err)
	}
	_, err := s.pay("k1", 1251)
	s.wantError(t, err, 422, stripego.ErrorTypeIdempotency, idem.CodeKeyReused, 2)
	if _, ok := errors.AsType[*stripego.IdempotencyError](err); !ok {
		t.Errorf("error = %v, want an IdempotencyError", err)
	}
}

func TestStripeGoDoesNotRepeatAnUnknownOutcome(t *testing.T) {
	s := start(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		w.(http.Flusher).Flush() // the answer is not kept
		_, _ = io.WriteString(w, `{"error":{"type":"api_error","message":"in doubt"}}`)
	})
	if _, err := s.pay("k1", 1250); err == nil {
		t.Fatal("a payment in doubt succeeded")
	}
	_, err := s.pay("k1", 1250)
	s.wantError(t, err, 500, stripego.ErrorTypeAPI, idem.CodeOutcomeUnknown, 2)
}

func TestStripeGoDoesNotRepeatAMalformedKey(t *testing.T) {
	s := start(t, func(http.ResponseWriter, *http.Request) {})
	_, err := s.pay("k1,k2", 1250)
	s.wantError(t, err, 400, stripego.ErrorTypeInvalidRequest, idem.CodeKeyInvalid, 1)
}

func TestStripeGoReadsAnOutage(t *testing.T) {
	s := start(t, func(http.ResponseWriter, *http.Request) {})
	if err := s.engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := s.pay("k1", 1250)
	s.wantError(t, err, 503, stripego.ErrorTypeAPI, idem.CodeUnavailable, 1)
}

func TestStripeGoAsksAgainWhileTheFirstRequestRuns(t *testing.T) {
	var s *service
	started, goOn := make(chan struct{}), make(chan struct{})
	s = start(t, func(w http.ResponseWriter, r *http.Request) {
		close(started)
		<-goOn
		s.created(w, r)
	})
	type result struct {
		*stripego.PaymentIntent
		error
	}
	results := make(chan result, 2)
	pay := func() {
		got, err := s.pay("k1", 1250)
		results <- result{got, err}
	}
	go pay()
	<-started
	go pay()
	for range 3 { // the first, its duplicate, which is refused, and that one again
		<-s.arrived
	}
	close(goOn)
	for range 2 {
		if r := <-results; r.error != nil || r.ID != "pi_1" {
			t.Errorf("payment = %+v, %v, want pi_1", r.PaymentIntent, r.error)
		}
	}
	if runs := s.runs.Load(); runs != 1 {
		t.Errorf("the handler ran %d times, want once", runs)
	}
}
