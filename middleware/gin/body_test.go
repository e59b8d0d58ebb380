package idemgin_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/gin-gonic/gin/binding"
)

// Validation in front binds the body, and leaves it to Gin to keep it. The middleware takes what Gin
// has kept, and refuses a request whose body is gone.
func TestValidationInFront(t *testing.T) {
	t.Parallel()
	type order struct {
		Amount int `binding:"required" form:"amount" json:"amount"`
	}
	for name, tt := range map[string]struct {
		bind  func(c *gin.Context, o *order) error
		taken bool
	}{
		"ShouldBindBodyWithJSON": {func(c *gin.Context, o *order) error { return c.ShouldBindBodyWithJSON(o) }, true},
		"ShouldBindBodyWith":     {func(c *gin.Context, o *order) error { return c.ShouldBindBodyWith(o, binding.JSON) }, true},
		"ShouldBindJSON":         {func(c *gin.Context, o *order) error { return c.ShouldBindJSON(o) }, false},
		"GetRawData":             {func(c *gin.Context, o *order) error { _, err := c.GetRawData(); o.Amount = 1; return err }, false},
	} {
		runs := 0
		srv := httptest.NewServer(router(func(c *gin.Context) {
			if err := tt.bind(c, &order{}); err != nil {
				c.AbortWithStatusJSON(http.StatusBadRequest, gin.H{"error": err.Error()})
			}
		}, protect(t), func(c *gin.Context) {
			runs++
			var kept, read order
			if err := c.ShouldBindBodyWithJSON(&kept); err != nil {
				t.Errorf("%s: ShouldBindBodyWithJSON() = %v", name, err)
			}
			if err := c.ShouldBindJSON(&read); err != nil {
				t.Errorf("%s: ShouldBindJSON() = %v", name, err)
			}
			c.JSON(http.StatusCreated, gin.H{"kept": kept.Amount, "read": read.Amount})
		}))
		t.Cleanup(srv.Close)
		pay := func(key, body string, announced bool) (int, string, bool) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/pay", io.NopCloser(strings.NewReader(body)))
			if err != nil {
				t.Fatal(err)
			}
			if req.ContentLength = -1; announced {
				req.ContentLength = int64(len(body))
			}
			req.Header.Set("Idempotency-Key", key)
			req.Header.Set("Content-Type", "application/json")
			resp, err := srv.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			answer, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return resp.StatusCode, string(answer), resp.Header.Get("Idempotent-Replayed") == "true"
		}
		for key, announced := range map[string]bool{"k1": true, "k2": false} {
			if status, _, _ := pay(key, `{"amount":0}`, announced); status != 400 && name != "GetRawData" {
				t.Errorf("%s: an invalid order = %d, want 400", name, status)
			}
			for i := range 2 {
				status, answer, replayed := pay(key, `{"amount":1}`, announced)
				if tt.taken && (status != 201 || answer != `{"kept":1,"read":1}` || replayed != (i > 0)) {
					t.Errorf("%s: request %d = %d %s, replayed %v, want the payment of 1", name, i, status, answer, replayed)
				}
				if !tt.taken && status != 500 {
					t.Errorf("%s: request %d = %d %s, want it refused", name, i, status, answer)
				}
			}
			if status, answer, _ := pay(key, `{"amount":900}`, announced); tt.taken && status != 422 || !tt.taken && status != 500 {
				t.Errorf("%s: another order under the key = %d %s, want it refused", name, status, answer)
			}
		}
		if runs > 0 != tt.taken || runs > 2 {
			t.Errorf("%s: the handler ran %d times", name, runs)
		}
	}
}
