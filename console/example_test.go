package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A service mounts the console beside its routes. signedIn stands for its single sign-on.
func ExampleNew() {
	signedIn := func(*http.Request) (user string, groups map[string]bool) {
		return "ada", map[string]bool{"payments-oncall": true}
	}

	var page *console.Console
	engine, err := idem.New(memorylock.New(), memorystore.New(), idem.WithObserver(func(ctx context.Context, ev telemetry.Event) { page.Observe(ctx, ev) }))
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()} // the one of the routes
	authorise := func(r *http.Request) (console.Operator, error) {
		user, groups := signedIn(r)
		if user == "" {
			return console.Operator{}, console.ErrUnauthorised
		}
		return console.Operator{Name: user, MaySettle: groups["payments-oncall"]}, nil
	}
	page, err = console.New(engine, authorise, console.Config{Service: "payments", Policies: []idem.Policy{policy}})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/console/", http.StripPrefix("/console", page))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/console/", nil))
	fmt.Println(w.Code, w.Header().Get("Content-Type"))
	// Output: 200 text/html; charset=utf-8
}

// A console for two operators, in two lines of a service. Only the right password opens it.
func ExampleMustNew() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	operators := console.BasicAuth(map[string]string{"ada": "ahF9Quoh4gee", "bob": "Choov5eiPh3o"}, console.Operator{MaySettle: true})
	http.Handle("/console/", http.StripPrefix("/console", console.MustNew(engine, operators)))

	for _, password := range []string{"", "ahF9Quoh4gee"} {
		r := httptest.NewRequest(http.MethodGet, "/console/", nil)
		r.SetBasicAuth("ada", password)
		w := httptest.NewRecorder()
		http.DefaultServeMux.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	// Output:
	// 401
	// 200
}

// A look-up of a service whose payments have the operation ID. The answer comes from the function
// that the handler uses, so that a repeat gets what the first request would have got.
func ExampleFound() {
	type payment struct{ ID, Amount, From string }
	ledger := map[string]payment{"op_1": {"pay_1", "12.50 USD", "alice"}} // by operation ID
	created := func(p payment) idem.Response {
		return idem.Response{Status: http.StatusCreated, Header: map[string][]string{"Location": {"/payments/" + p.ID}}, Body: []byte(`{"id":"` + p.ID + `"}`)}
	}
	cfg := console.Config{LookUp: func(_ context.Context, _, operationID string) (console.Found, error) {
		p, ok := ledger[operationID]
		if !ok {
			return console.Found{Nothing: true}, nil
		}
		return console.Found{Says: p.ID + ": " + p.Amount + " from " + p.From, Answer: created(p)}, nil
	}}

	for _, op := range []string{"op_1", "op_2"} {
		found, err := cfg.LookUp(context.Background(), "POST /payments", op)
		fmt.Printf("%q %v %v\n", found.Says, found.Nothing, err)
	}
	// Output:
	// "pay_1: 12.50 USD from alice" false <nil>
	// "" true <nil>
}

// Ada settles, and bob only reads.
func ExampleBasicAuth() {
	settlers := console.BasicAuth(map[string]string{"ada": "ahF9Quoh4gee"}, console.Operator{MaySettle: true})
	readers := console.BasicAuth(map[string]string{"bob": "Choov5eiPh3o"}, console.Operator{})
	authorise := func(r *http.Request) (console.Operator, error) {
		if op, err := settlers(r); err == nil {
			return op, nil
		}
		return readers(r)
	}

	r := httptest.NewRequest(http.MethodGet, "/console/", nil)
	r.SetBasicAuth("bob", "Choov5eiPh3o")
	op, err := authorise(r)
	fmt.Println(op.Name, op.MaySettle, err)
	// Output: bob false <nil>
}
