package clients

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// doubts are the ways in which a payment can end in doubt, and how a client has to end. No client
// takes another key, and none stops while asking again helps.
var doubts = map[string]struct {
	answer  func(w http.ResponseWriter, r *http.Request) // of the first run, after the money has moved
	inDoubt func(bank *doubtfulBank) idem.InDoubt
	ends    string // part of what the client prints
	asks    int    // how often, at least
	atMost  int
}{
	"500, and a person has to look":          {failing(500), leave, `"outcome-unknown"`, 2, 2},
	"500, and a resolver finds out late":     {failing(500), resolved(3), `"pay_1"`, 3, 8},
	"500, and the route runs again":          {failing(500), again, `"pay_1"`, 2, 2},
	"402 after the time is over":             {declined, leave, `"outcome-unknown"`, 1, 1},
	"402 after the time, and a resolver":     {declined, resolved(2), `"pay_1"`, 2, 8},
	"a refusal of another service, resolved": {relayed, resolved(2), `"pay_1"`, 2, 8},
	"a refusal of another service":           {relayed, leave, `"outcome-unknown"`, 1, 1},
	"a panic":                                {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, resolved(2), `"pay_1"`, 2, 8},
}

func TestClientsNeitherGiveUpNorTakeAnotherKeyInDoubt(t *testing.T) {
	t.Parallel()
	clients := exampleClients(t)
	for name, tt := range doubts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for client, command := range clients {
				bank := &doubtfulBank{first: tt.answer}
				url := bank.serve(t, tt.inDoubt(bank))
				out, err := runClient(t, command, url, "order-1")
				if !strings.Contains(out, tt.ends) || (err == nil) != strings.Contains(tt.ends, "pay_") {
					t.Errorf("%s printed %s and ended with %v, want %s", client, out, err, tt.ends)
				}
				bank.mu.Lock()
				if n := bank.asked["order-1"]; len(bank.asked) != 1 || n < tt.asks || n > tt.atMost {
					t.Errorf("%s asked with the keys %v, want %d to %d times with its own", client, bank.asked, tt.asks, tt.atMost)
				}
				bank.mu.Unlock()
			}
		})
	}
}

func leave(*doubtfulBank) idem.InDoubt { return idem.LeaveUnknown() }
func again(*doubtfulBank) idem.InDoubt { return idem.RunAgain() }

// resolved asks a resolver that knows the outcome from its nth call on.
func resolved(nth int) func(*doubtfulBank) idem.InDoubt {
	return func(b *doubtfulBank) idem.InDoubt {
		calls := 0
		return idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if calls++; calls < nth {
				return idem.StillUnknown(), nil
			}
			return idem.Applied(idem.Response{Status: 201, Header: map[string][]string{"Content-Type": {"application/json"}}, Body: []byte(`{"id":"pay_1"}`)}), nil
		})
	}
}

func failing(status int) func(http.ResponseWriter, *http.Request) {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write([]byte(`{"error":"no answer from the bank"}`))
	}
}

// declined answers as handlers do that take the end of their time for a refusal of the bank.
func declined(w http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
	failing(402)(w, r)
}

// relayed hands on the refusal of a service that the handler has called.
func relayed(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusUnprocessableEntity)
	_, _ = w.Write([]byte(`{"status":422,"code":"key-reused"}`))
}

// doubtfulBank is a service whose first run ends in doubt.
type doubtfulBank struct {
	first func(w http.ResponseWriter, r *http.Request)

	mu    sync.Mutex
	runs  int
	asked map[string]int // requests by key
}

func (b *doubtfulBank) serve(t *testing.T, inDoubt idem.InDoubt) (url string) {
	t.Helper()
	b.asked = map[string]int{}
	engine, err := idem.New(memorylock.New(), memorystore.New())
	kit.Fatal(t, err)
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	policy := idem.Policy{AllowGlobalKeys: true, InDoubt: inDoubt, HandlerTimeout: 50 * time.Millisecond}
	protected := idemhttp.MustNew(engine, policy)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.runs++
		first := b.runs == 1
		b.mu.Unlock()
		if first {
			b.first(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":"pay_1"}`))
	}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.mu.Lock()
		b.asked[r.Header.Get("Idempotency-Key")]++
		b.mu.Unlock()
		protected.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}
