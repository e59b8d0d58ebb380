package idemhttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// A handler that forwards the answer of another service may have its mark of a stored outcome. Here
// the mark would tell that an outcome in doubt is final.
func TestMarkOfAnotherServiceIsNotForwarded(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(http.ResponseWriter){
		"kept":     func(http.ResponseWriter) {},
		"streamed": func(w http.ResponseWriter) { _ = http.NewResponseController(w).Flush() },
	} {
		for _, mark := range []string{"Idempotent-Replayed", "idempotent-replayed"} {
			protect := idemhttp.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}, exchange.Config{Streaming: true})
			srv := httptest.NewServer(protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()[mark] = []string{"true"}
				w.WriteHeader(http.StatusBadGateway)
				answer(w)
			})))
			defer srv.Close()
			client := http.Client{Transport: idemhttp.MustNewTransport(nil)}
			resp, err := client.Post(srv.URL, "text/plain", strings.NewReader("amount=1"))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusBadGateway || resp.Header.Get(mark) != "" {
				t.Errorf("%s, %s: answer = %d with %v, want 502 without the mark", name, mark, resp.StatusCode, resp.Header)
			}
		}
	}
}

// The middleware refuses an empty body in chunks, so the transport must not make one.
func TestTransportSendsNoBodyAsNone(t *testing.T) {
	t.Parallel()
	protect := idemhttp.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	srv := httptest.NewServer(protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			t.Errorf("length = %d, want 0", r.ContentLength)
		}
	})))
	defer srv.Close()
	for name, opts := range map[string][]idemhttp.TransportOption{"sent once": nil, "sent again": {idemhttp.WithKeysHonoured()}} {
		for below, base := range map[string]http.RoundTripper{
			"net/http": nil,
			"another":  between{http.DefaultTransport},
			"tracing":  wrapping{http.DefaultTransport},
		} {
			client := http.Client{Transport: idemhttp.MustNewTransport(base, opts...)}
			resp, err := client.Post(srv.URL, "", nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("%s, over %s: answer = %d, want 200", name, below, resp.StatusCode)
			}
		}
	}
}

// Only the mark of this middleware ends a request. Another system may use the header in its own way.
func TestTransportTakesNoOtherValueForTheMark(t *testing.T) {
	t.Parallel()
	for mark, want := range map[string]int32{"true": 1, "false": 2, "1": 2, "": 2} {
		var asked atomic.Int32
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if asked.Add(1) == 1 {
				w.Header().Set("Idempotent-Replayed", mark)
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}))
		defer srv.Close()
		client := http.Client{Transport: idemhttp.MustNewTransport(nil, idemhttp.WithKeysHonoured(), idemhttp.WithRetryBackoff(time.Microsecond, time.Millisecond))}
		resp, err := client.Post(srv.URL, "text/plain", strings.NewReader("amount=1"))
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if asked.Load() != want {
			t.Errorf("after the mark %q it asked %d times, want %d", mark, asked.Load(), want)
		}
	}
}

// wrapping is a transport that counts what is read of a body, as otelhttp does.
type wrapping struct{ next http.RoundTripper }

func (w wrapping) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if req.Body != nil && req.Body != http.NoBody {
		req.Body = struct{ io.ReadCloser }{req.Body}
	}
	return w.next.RoundTrip(req)
}
