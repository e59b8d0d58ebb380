package idemgin_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

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
	r.POST("/v1/payments", authenticate, idemgin.MustNew(engine, idem.Policy{Scope: idem.ScopeFrom("merchant"), InDoubt: idem.LeaveUnknown()}), func(c *gin.Context) {
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

// The service issues a token with its form. The form can be sent once, and its owner can ask where
// the token stands.
func ExampleTokenHandler() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	policy := idem.Policy{Scope: idem.ScopeFrom("merchant"), IssuedTokens: true, InDoubt: idem.LeaveUnknown()}
	r := gin.New()
	r.Use(func(c *gin.Context) { c.Set("merchant", "merchant_demo") }) // the authentication
	r.POST("/v1/tokens", idemgin.MustTokenHandler(engine, policy, 15*time.Minute))
	r.GET("/v1/idempotency", idemgin.MustStatusHandler(engine, policy))
	r.POST("/v1/trades", idemgin.MustNew(engine, policy), func(c *gin.Context) { c.Status(http.StatusCreated) })

	send := func(method, path, key string) *httptest.ResponseRecorder {
		req := httptest.NewRequest(method, path, nil)
		req.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		return w
	}
	var issued struct{ Token string }
	if err := json.Unmarshal(send("POST", "/v1/tokens", "").Body.Bytes(), &issued); err != nil {
		panic(err)
	}
	fmt.Println(send("POST", "/v1/trades", "made-up").Code)
	fmt.Println(send("POST", "/v1/trades", issued.Token).Code)
	fmt.Println(strings.Contains(send("GET", "/v1/idempotency", issued.Token).Body.String(), `"state":"completed"`))
	// Output:
	// 403
	// 201
	// true
}
