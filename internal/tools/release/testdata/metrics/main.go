// A net/http service on one machine that exports metrics for Prometheus
package main

import (
	"context"
	"log"
	"net/http"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	idemprom "github.com/idemkeeper/idemkeeper/observe/prometheus"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func main() {
	engine, err := idem.New(memorylock.New(), memorystore.New(), idemprom.MustNew(nil).Engine())
	if err != nil {
		log.Fatal(err)
	}
	protect := idemhttp.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	http.Handle("POST /pay", protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })))
	log.Fatal(http.ListenAndServe(":8080", nil))
}

func merchant(context.Context) (string, error) { return "merchant_1", nil }
