package clients

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// exampleClients are the programs in examples/clients, as docs/clients.md lists them.
func exampleClients(t *testing.T) map[string][]string {
	t.Helper()
	if testing.Short() {
		t.Skip(testserver.LeftOut)
	}
	dir, err := filepath.Abs("../../examples/clients")
	if err != nil {
		t.Fatal(err)
	}
	clients := map[string][]string{
		"curl":   {"bash", filepath.Join(dir, "pay.sh")},
		"Python": {"python3", filepath.Join(dir, "pay.py")},
		"Node":   {"node", filepath.Join(dir, "pay.mjs")},
		"Java":   {"java", filepath.Join(dir, "Pay.java")},
		"Go":     {kit.Binary(t, "./examples/clients")},
	}
	for name, command := range clients {
		if _, err := exec.LookPath(command[0]); err != nil {
			t.Fatalf("%s: %v: run make servers", name, err)
		}
	}
	return clients
}

// A client whose first answer is lost, and who is refused twice, repeats its request with its key
// and body. It gets the one payment.
func TestExampleClientsRepeatUntilThereIsAnAnswer(t *testing.T) {
	t.Parallel()
	clients := exampleClients(t)
	in := kit.StartInstance(t, "the sample")
	for name, command := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			front := startFlaky(t, in.Addr)
			out, err := runClient(t, command, front.url, "repeat-"+name)
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			payments, err := in.HTTPClient().ListPayments("repeat-" + name)
			if err != nil || len(payments) != 1 || !strings.Contains(out, payments[0].ID) {
				t.Errorf("the client has printed %s, want the one payment of %v", out, payments)
			}
			if n := len(front.seen()); n != 4 {
				t.Errorf("it has sent %d requests, want 4: the lost answer, two refusals, the replay", n)
			}
			for _, r := range front.seen() {
				if r != front.seen()[0] {
					t.Errorf("it has sent %q after %q", r, front.seen()[0])
				}
			}
		})
	}
}

// Retry-After is a number of seconds or a date (RFC 9110, section 10.2.3). What is neither asks for
// nothing.
func TestExampleClientsReadRetryAfter(t *testing.T) {
	t.Parallel()
	for name, command := range exampleClients(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch asked.Add(1) {
				case 1:
					w.Header().Set("Retry-After", "soon")
					w.WriteHeader(http.StatusServiceUnavailable)
				case 2, 3:
					w.Header().Set("Retry-After", time.Now().Add(time.Second).UTC().Format(http.TimeFormat))
					w.WriteHeader(http.StatusInternalServerError)
				default:
					w.WriteHeader(http.StatusCreated)
				}
				_, _ = io.WriteString(w, `{"id":"pay_1"}`)
			}))
			t.Cleanup(server.Close)
			if out, err := runClient(t, command, server.URL, "order-1"); err != nil || asked.Load() != 4 {
				t.Errorf("%v after %d requests, want 4: %s", err, asked.Load(), out)
			}
		})
	}
}

// A refusal that will not change is told to the caller after one request.
func TestExampleClientsStopAtAFinalAnswer(t *testing.T) {
	t.Parallel()
	clients := exampleClients(t)
	in := kit.StartInstance(t, "the sample")
	for name, command := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := "final-" + name
			if a := in.HTTPClient().Pay(key, 77, "another amount"); !a.IsPayment() {
				t.Fatal(a)
			}
			var sent sync.Map
			front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, again := sent.LoadOrStore("sent", true)
				if again {
					t.Error("it has sent a second request")
				}
				proxyTo(in.Addr).ServeHTTP(w, r)
			}))
			defer front.Close()
			out, err := runClient(t, command, front.URL, key)
			if err == nil || !strings.Contains(out, `"key-reused"`) {
				t.Errorf("the client has printed %s and ended with %v, want the refusal", out, err)
			}
		})
	}
}

func runClient(t *testing.T, command []string, args ...string) (stdout string, err error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], append(command[1:], args...)...)
	cmd.Dir = t.TempDir()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	t.Logf("standard error: %s", stderr.String())
	return string(out), err
}

// flaky stands in front of the sample. It loses the first answer, refuses twice, and then lets
// requests through.
type flaky struct {
	url      string
	mu       sync.Mutex
	requests []string // key and body of each
}

func (f *flaky) seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.requests
}

func startFlaky(t *testing.T, addr string) *flaky {
	t.Helper()
	f := &flaky{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		f.mu.Lock()
		f.requests = append(f.requests, r.Header.Get("Idempotency-Key")+" "+string(body))
		n := len(f.requests)
		f.mu.Unlock()
		switch n {
		case 1:
			lost := httptest.NewRecorder()
			proxyTo(addr).ServeHTTP(lost, r)
			if lost.Code != http.StatusCreated {
				t.Errorf("the first request was answered with %d, want 201", lost.Code)
			}
			panic(http.ErrAbortHandler)
		case 2:
			refuse(w, http.StatusServiceUnavailable, "unavailable")
		case 3:
			refuse(w, http.StatusConflict, "in-progress")
		default:
			proxyTo(addr).ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	f.url = server.URL
	return f
}

func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Retry-After", "1")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, `{"status":`+strconv.Itoa(status)+`,"code":"`+code+`"}`)
}

func proxyTo(addr string) http.Handler {
	return httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: addr})
}
