package around

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// patience bounds a request.
const patience = 30 * time.Second

// service is a payment service with two instances.
type service struct {
	*testing.T

	unprotected bool                            // without the middleware
	losing      bool                            // the first answer is lost, and its connection closed
	slow        func(ctx context.Context)       // what the payment waits for
	outside     func(http.Handler) http.Handler // middleware of the service, or nil

	addrs             [2]string
	arrivals, charges atomic.Int32
}

// start starts the instances. They share a lock and a store.
func (s *service) start() {
	s.Helper()
	locker, store := memorylock.New(), memorystore.New()
	for i := range s.addrs {
		var handler http.Handler = http.HandlerFunc(s.pay)
		if !s.unprotected {
			engine, err := idem.New(locker, store)
			if err != nil {
				s.Fatal(err)
			}
			handler = idemhttp.MustNew(engine, idem.Policy{Scope: demo, InDoubt: idem.LeaveUnknown()})(handler)
		}
		if s.outside != nil {
			handler = s.outside(handler)
		}
		server := httptest.NewServer(s.arrive(handler))
		s.Cleanup(server.Close)
		s.addrs[i] = server.Listener.Addr().String()
	}
}

func demo(context.Context) (string, error) { return "merchant_demo", nil }

func (s *service) pay(w http.ResponseWriter, r *http.Request) {
	s.charges.Add(1)
	if s.slow != nil {
		s.slow(r.Context())
	}
	body, _ := io.ReadAll(r.Body)
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(body)
}

// arrive counts the requests that reach an instance.
func (s *service) arrive(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.arrivals.Add(1) == 1 && s.losing {
			next.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		next.ServeHTTP(w, r)
	})
}

// want fails unless so many requests have arrived and so many payments were made.
func (s *service) want(arrivals, charges int32) {
	s.Helper()
	if a, c := s.arrivals.Load(), s.charges.Load(); a != arrivals || c != charges {
		s.Errorf("%d requests have arrived and %d payments were made, want %d and %d", a, c, arrivals, charges)
	}
}

// configured returns a file with the addresses of a proxy and of the instances in place of its own.
func (s *service) configured(file string, replace ...string) func(string) string {
	s.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	return func(address string) string {
		names := []string{"listen 8080", "listen " + address, "bind :8080", "bind " + address, "payments-1:8080", s.addrs[0], "payments-2:8080", s.addrs[1]}
		return strings.NewReplacer(append(names, replace...)...).Replace(string(text))
	}
}

// answer is what a client gets.
type answer struct {
	status   int
	replayed bool
	body     string
}

// send sends a payment.
func send(t *testing.T, method, url, body string, header http.Header) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = header
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}} // so it repeats nothing by itself
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true", string(text)}
}

// with returns the header of a payment with further fields.
func with(fields ...string) http.Header {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i < len(fields); i += 2 {
		h.Set(fields[i], fields[i+1])
	}
	return h
}
