package idemhttp_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func Example() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	merchant := func(ctx context.Context) (string, error) { return "merchant_demo", nil } // as authentication left it
	protect := idemhttp.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})

	mux := http.NewServeMux()
	mux.Handle("POST /v1/payments", protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("charging once")
		w.Header().Set("Location", "/v1/payments/p1")
		w.WriteHeader(http.StatusCreated)
	})))

	for range 3 { // a client that retries
		r := httptest.NewRequest("POST", "/v1/payments", strings.NewReader(`{"amount":1250}`))
		r.Header.Set("Idempotency-Key", `"8e03978e-40d5-43e8-bc93-6894a57f9324"`)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(w.Code, w.Header().Get("Location"), "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// charging once
	// 201 /v1/payments/p1 replayed: false
	// 201 /v1/payments/p1 replayed: true
	// 201 /v1/payments/p1 replayed: true
}

// A gateway in front of a backend that knows no keys removes the key before it forwards a request.
func ExampleMustNew_gateway() {
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Printf("charging, key %q\n", r.Header.Get("Idempotency-Key"))
		w.WriteHeader(http.StatusCreated)
	}))
	defer bank.Close()
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	merchant := func(ctx context.Context) (string, error) { return "merchant_demo", nil } // as authentication left it
	backend, err := url.Parse(bank.URL)
	if err != nil {
		panic(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(backend)
			r.Out.Header.Del("Idempotency-Key")
		},
	}
	gateway := idemhttp.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})(proxy)
	for range 2 {
		r := httptest.NewRequest("POST", "/charges", nil)
		r.Header.Set("Idempotency-Key", "order-1001")
		w := httptest.NewRecorder()
		gateway.ServeHTTP(w, r)
		fmt.Println(w.Code, "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// charging, key ""
	// 201 replayed: false
	// 201 replayed: true
}

func ExampleTokenHandler() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{
		Scope:        func(ctx context.Context) (string, error) { return "merchant_demo", nil },
		IssuedTokens: true,
		InDoubt:      idem.LeaveUnknown(),
	}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/tokens", idemhttp.MustTokenHandler(engine, policy, 15*time.Minute))
	mux.Handle("GET /v1/idempotency", idemhttp.MustStatusHandler(engine, policy))
	mux.Handle("POST /v1/trades", idemhttp.MustNew(engine, policy)(http.NotFoundHandler()))

	r := httptest.NewRequest("POST", "/v1/trades", nil)
	r.Header.Set("Idempotency-Key", "made-up")
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, r)
	fmt.Print(w.Code, " ", w.Body)
	// Output:
	// 403 {"title":"Token is unknown","status":403,"detail":"This operation takes a one-time token that this server issued to the caller and that has not expired.","code":"token-unknown"}
}

func ExampleStatusHandler_policies() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	merchant := func(ctx context.Context) (string, error) { return "merchant_demo", nil }
	refunds := idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()} // nobody but a person can tell what became of a refund
	payments := idem.Policy{Scope: merchant, InDoubt: idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
		return idem.StillUnknown(), nil // a real one asks the ledger: see idem.Resolver
	})}
	down := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) })
	mux := http.NewServeMux()
	mux.Handle("POST /v1/refunds", idemhttp.MustNew(engine, refunds)(down))
	mux.Handle("POST /v1/payments", idemhttp.MustNew(engine, payments)(down))
	mux.Handle("GET /v1/idempotency", idemhttp.MustStatusHandler(engine, refunds,
		exchange.Config{StatusPolicies: []idem.Policy{payments.ForRoute("POST /v1/payments")}}))

	send := func(method, path, key string) string {
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w.Body.String()
	}
	for _, name := range []string{"payments", "refunds"} {
		send("POST", "/v1/"+name, "key-of-"+name)
		status := send("GET", "/v1/idempotency", "key-of-"+name)
		fmt.Println(name, strings.Contains(status, `"state":"unknown"`), strings.Contains(status, `"resolver":true`))
	}
	// Output:
	// payments true true
	// refunds true false
}

// A client asks where its key stands, and nothing runs.
func ExampleStatusHandler() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Scope: func(context.Context) (string, error) { return "merchant_demo", nil }, InDoubt: idem.LeaveUnknown()}
	mux := http.NewServeMux()
	mux.Handle("POST /v1/payments", idemhttp.MustNew(engine, policy)(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	})))
	mux.Handle("GET /v1/idempotency", idemhttp.MustStatusHandler(engine, policy))

	for _, method := range []string{"GET", "POST", "GET"} {
		path := map[string]string{"GET": "/v1/idempotency", "POST": "/v1/payments"}[method]
		r := httptest.NewRequest(method, path, nil)
		r.Header.Set("Idempotency-Key", "order-1001")
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(method, w.Code, "completed:", strings.Contains(w.Body.String(), `"state":"completed"`))
	}
	// Output:
	// GET 200 completed: false
	// POST 201 completed: false
	// GET 200 completed: true
}

// Clients that send no key yet are served without protection.
func ExampleNew_optionalKey() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Scope: func(context.Context) (string, error) { return "merchant_demo", nil }, InDoubt: idem.LeaveUnknown()}
	pay := idemhttp.MustNew(engine, policy, exchange.Config{OptionalKey: true})(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
	}))
	for _, key := range []string{"", "", "order-1001", "order-1001"} {
		r := httptest.NewRequest("POST", "/v1/payments", nil)
		if key != "" {
			r.Header.Set("Idempotency-Key", key)
		}
		w := httptest.NewRecorder()
		pay.ServeHTTP(w, r)
		fmt.Println(w.Code, "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// 201 replayed: false
	// 201 replayed: false
	// 201 replayed: false
	// 201 replayed: true
}
