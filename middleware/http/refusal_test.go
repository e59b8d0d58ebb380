package idemhttp_test

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

func TestWriteRefusal(t *testing.T) {
	t.Parallel()
	refusal := &idem.Refusal{Code: idem.CodeInProgress, RetryAfter: 1500 * time.Millisecond, Advice: "Wait.", Err: errors.New("secret")}
	for documentation, want := range map[string]string{
		"":      `{"title":"A request is outstanding for this Idempotency-Key","status":409,"detail":"Wait.","code":"in-progress"}`,
		"/keys": `{"type":"/keys#in-progress","title":"A request is outstanding for this Idempotency-Key","status":409,"detail":"Wait.","code":"in-progress"}`,
	} {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Length", "7") // of the answer that the refusal takes the place of
		exchange.WriteRefusal(w, refusal, documentation)
		h := w.Header()
		if got := strings.TrimSpace(w.Body.String()); w.Code != 409 || got != want || h.Get("Retry-After") != "2" ||
			h.Get("Content-Type") != "application/problem+json" || h.Get("Cache-Control") != "no-store" || h["Content-Length"] != nil {
			t.Errorf("WriteRefusal() with documentation %q = %d %v %s, want %s", documentation, w.Code, h, got, want)
		}
	}
}
