package console_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A service mounts the console beside its routes. signedIn stands for its single sign-on.
func ExampleNew() {
	signedIn := func(*http.Request) (user string, groups map[string]bool) {
		return "ada", map[string]bool{"payments-oncall": true}
	}

	store := memorystore.New()
	var page *console.Console
	engine, err := idem.New(memorylock.New(), store, idem.WithObserver(func(ctx context.Context, ev idem.Event) { page.Observe(ctx, ev) }))
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()} // the one of the routes
	page, err = console.New(console.Config{
		Engine: engine, Store: store, Service: "payments",
		Policies: func(route string) (idem.Policy, bool) { return policy, true },
		Authorise: func(r *http.Request) (console.Operator, error) {
			user, groups := signedIn(r)
			if user == "" {
				return console.Operator{}, console.ErrUnauthorised
			}
			return console.Operator{Name: user, MaySettle: groups["payments-oncall"]}, nil
		},
	})
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
