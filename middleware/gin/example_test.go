package idemgin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func Example() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	authenticate := func(c *gin.Context) { c.Set("merchant", "merchant_demo") }

	r := gin.New()
	r.POST("/v1/payments", authenticate, idemgin.Middleware(engine, idem.Policy{Scope: idem.ScopeFrom("merchant")}), func(c *gin.Context) {
		fmt.Println("charging once")
		c.JSON(http.StatusCreated, gin.H{"id": "p1"})
	})

	for range 3 { // a client that retries
		req := httptest.NewRequest("POST", "/v1/payments", strings.NewReader(`{"amount":1250}`))
		req.Header.Set("Idempotency-Key", "8e03978e-40d5-43e8-bc93-6894a57f9324")
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		fmt.Println(w.Code, w.Body, "replayed:", w.Header().Get("Idempotent-Replayed") == "true")
	}
	// Output:
	// charging once
	// 201 {"id":"p1"} replayed: false
	// 201 {"id":"p1"} replayed: true
	// 201 {"id":"p1"} replayed: true
}
