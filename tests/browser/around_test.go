package browser

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// cors lets the pages of an origin send payments and read the answers.
func cors(origin string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Add("Vary", "Origin")
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", "Idempotent-Replayed, Retry-After")
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			h.Set("Access-Control-Allow-Methods", "POST")
			h.Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Idempotency-Key")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authenticate lets one client in.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer demo" {
			http.Error(w, "who is this?", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// paying sends a payment from a page, and tells what the page can read of the answer.
const paying = `fetch(%q, {
	method: "POST",
	headers: {"Idempotency-Key": "order-1001", "Authorization": "Bearer demo", "Content-Type": "application/json"},
	body: '{"amount":1250}',
}).then(async (a) => [a.status, a.headers.get("Idempotent-Replayed"), a.headers.get("Retry-After"), await a.text()].join(","), () => "blocked")`

// A page of another origin pays, and reads the payment, its replay, and when to come back.
func TestPageOfAnotherOrigin(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(page.Close)
	var charges atomic.Int32
	began, block := make(chan struct{}), make(chan struct{})
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if charges.Add(1) == 2 {
			close(began)
			<-block
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "paid")
	})
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	protect := idemhttp.MustNew(engine, idem.Policy{Scope: func(context.Context) (string, error) { return "merchant_demo", nil }, InDoubt: idem.LeaveUnknown()})
	protected := authenticate(protect(pay))
	service := httptest.NewServer(cors(page.URL, protected))
	t.Cleanup(service.Close)
	t.Cleanup(func() { close(block) })

	p := open(t, "")
	p.to(page.URL)
	for i, want := range []string{"201,,,paid", "201,true,,paid"} {
		if got := promised(p, fmt.Sprintf(paying, service.URL)); got != want {
			t.Errorf("payment %d = %q, want %q", i+1, got, want)
		}
	}
	long := strings.Replace(fmt.Sprintf(paying, service.URL), "order-1001", "order-1002", 1)
	p.do(chromedp.Evaluate[chromedp.Void](`void ` + long))
	select {
	case <-began:
	case <-time.After(patience):
		t.Fatal("the second payment does not begin")
	}
	if got := promised(p, long); !strings.HasPrefix(got, "409,,1,") || !strings.Contains(got, `"in-progress"`) {
		t.Errorf("a repeat of a payment that still runs = %q, want 409 with Retry-After", got)
	}
	p.wantNoFaults("409")

	// Each of these keeps a page from its answer.
	for name, wrong := range map[string]http.Handler{
		"inside of the authentication": authenticate(cors(page.URL, protect(pay))),
		"without the key in its list": http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodOptions {
				cors(page.URL, protected).ServeHTTP(w, r)
				return
			}
			w.Header().Set("Access-Control-Allow-Origin", page.URL)
			w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type")
		}),
	} {
		closed := httptest.NewServer(wrong)
		t.Cleanup(closed.Close)
		if got := promised(p, fmt.Sprintf(paying, closed.URL)); got != "blocked" {
			t.Errorf("CORS %s = %q, want it blocked", name, got)
		}
	}
	if n := charges.Load(); n != 2 {
		t.Errorf("%d payments were made, want 2", n)
	}
}

// promised evaluates a promise of a text.
func promised(p *tab, expression string) string {
	p.Helper()
	return get(p, chromedp.Evaluate[string](expression, chromedp.EvalAwaitPromise))
}

// A page of http:// has no crypto.randomUUID, and makes its keys with key.mjs.
func TestKeyOfAPage(t *testing.T) {
	module, err := os.ReadFile("../../examples/clients/key.mjs")
	if err != nil {
		t.Fatal(err)
	}
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ".mjs") {
			w.Header().Set("Content-Type", "text/javascript")
			_, _ = w.Write(module)
		}
	}))
	t.Cleanup(page.Close)
	p := open(t, "", chromedp.Flag("host-resolver-rules", "MAP shop.example 127.0.0.1"))
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	keys := map[string]bool{}
	for url, want := range map[string]string{
		strings.Replace(page.URL, "127.0.0.1", "shop.example", 1): "undefined",
		page.URL: "function",
	} {
		p.to(url)
		if got := eval[string](p, `typeof crypto.randomUUID`); got != want {
			t.Errorf("crypto.randomUUID of %s is %s, want %s", url, got, want)
		}
		for range 2 {
			key := promised(p, `import("./key.mjs").then((m) => m.newKey())`)
			if !form.MatchString(key) || keys[key] {
				t.Errorf("key of %s = %q, want another UUID", url, key)
			}
			keys[key] = true
		}
	}
}
