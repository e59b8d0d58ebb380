package exchange_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// handlerFunc is a handler of a framework in which handlers return their errors.
type handlerFunc func(w http.ResponseWriter, r *http.Request) error

// protect is an adapter for that framework.
func protect(engine *idem.Engine, policy idem.Policy, next handlerFunc) (handlerFunc, error) {
	route, err := exchange.New(engine, policy, exchange.Config{})
	if err != nil {
		return nil, err
	}
	return func(w http.ResponseWriter, r *http.Request) error {
		served := route.Serve(exchange.Call{
			Writer:  w,
			Request: r,
			Route:   r.Pattern,
			Next: func(w *exchange.Writer, r *http.Request) {
				if err := next(w, r); err != nil { // the answer to an error is the outcome
					http.Error(w, "sorry", http.StatusInternalServerError)
				}
			},
		})
		if !served {
			return next(w, r)
		}
		return nil
	}, nil
}

// An adapter for a framework in which handlers return their errors.
func Example() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	merchant := func(context.Context) (string, error) { return "merchant_demo", nil }
	payments := 0
	pay, err := protect(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}, func(w http.ResponseWriter, _ *http.Request) error {
		payments++
		w.WriteHeader(http.StatusCreated)
		_, err := fmt.Fprintf(w, "payment %d", payments)
		return err
	})
	if err != nil {
		panic(err)
	}
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(`{"amount":1250}`))
		r.Header.Set(exchange.DefaultHeader, "order-7")
		w := httptest.NewRecorder()
		_ = pay(w, r)
		fmt.Println(w.Code, w.Body, w.Header().Get(exchange.ReplayedHeader) == "true")
	}
	// Output:
	// 201 payment 1 false
	// 201 payment 1 true
}
