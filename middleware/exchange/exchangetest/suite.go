package exchangetest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Adapter is an adapter under test.
type Adapter struct {
	// Protect serves h, protected, on every path and method. The error is that of the adapter for
	// wrong wiring.
	Protect func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config, h http.Handler) (http.Handler, error)
	// Status serves the status handler on every path, and Tokens the token handler. Tokens is nil if
	// the adapter has no such handler.
	Status func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config) (http.Handler, error)
	Tokens func(engine *idem.Engine, policy idem.Policy, ttl time.Duration) (http.Handler, error)
	// Beyond names cases beyond the framework, such as "stream" or "write/103 Early Hints",
	// with the reason. A name stands for all cases with this beginning. They are not run,
	// and a name of no case is an error.
	Beyond map[string]string
}

// beyond returns the name and the reason if a case is left out.
func (a *Adapter) beyond(name string) (beginning, reason string) {
	for beginning, reason := range a.Beyond {
		if strings.HasPrefix(name, beginning) {
			return beginning, reason
		}
	}
	return "", ""
}

// testCase is one behaviour. The bundle is the case's own.
type testCase struct {
	name string
	run  func(b *bundle)
}

// Run runs every case, in parallel.
func Run(t *testing.T, a Adapter) {
	a.Beyond = maps.Clone(a.Beyond)
	if a.Beyond == nil {
		a.Beyond = make(map[string]string)
	}
	if a.Tokens == nil {
		a.Beyond["identity/issued tokens"] = "the adapter issues no tokens"
	}
	unknown := maps.Clone(a.Beyond)
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"replay", replayCases}, {"refuse", refusalCases}, {"identity", identityCases}, {"status", statusCases},
		{"write", writerCases}, {"stream", streamCases}, {"early", earlyCases}, {"fail", failureCases}, {"a rejection", rejectCases}, {"without a key", keylessCases}, {"doubt", doubtCases}, {"give up", givenUpCases}, {"relay", relayCases}, {"nest", nestedCases}, {"forward", forwardCases}, {"run again", againCases}, {"wire", wiringCases}, {"choose", configCases},
	} {
		for _, c := range group.cases {
			name := group.name + "/" + c.name
			if beginning, reason := a.beyond(name); beginning != "" {
				delete(unknown, beginning)
				t.Logf("left out: %s: %s", name, reason)
				continue
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				c.run(setup(t, a))
			})
		}
	}
	for name := range unknown {
		t.Errorf("Beyond names %q, want the beginning of a case", name)
	}
}

// patience bounds the waits of a case. Reaching it is a failure.
const patience = 20 * time.Second

// bundle is an engine on in-process parts, with the set-up of a case.
type bundle struct {
	*testing.T
	adapter Adapter
	engine  *idem.Engine
	locker  *idemtest.FaultyLocker
	lock    *memorylock.Locker // in locker
	store   *idemtest.FaultyStore
	records *memorystore.Store // in store
	policy  idem.Policy
	cfg     exchange.Config
	runs    atomic.Int64      // of the handler
	later   atomic.Int64      // nanoseconds by which the store's clock is ahead
	seen    [256]atomic.Int64 // events, by type

	overHTTP2 bool // the server speaks HTTP/2

	url    string
	client *http.Client
}

func setup(t *testing.T, a Adapter) *bundle {
	t.Helper()
	b := &bundle{T: t, adapter: a, lock: memorylock.New()}
	clock := func() time.Time { return time.Now().Add(time.Duration(b.later.Load())) }
	b.records = memorystore.New(memorystore.WithClock(clock))
	b.locker, b.store = idemtest.NewFaultyLocker(b.lock), idemtest.NewFaultyStore(b.records)
	engine, err := idem.New(b.locker, b.store, idem.WithObserver(func(_ context.Context, ev telemetry.Event) { b.seen[ev.Type].Add(1) }))
	if err != nil {
		t.Fatalf("idem.New() = %v", err)
	}
	b.engine = engine
	b.policy = idem.Policy{Scope: func(context.Context) (string, error) { return "merchant", nil }, InDoubt: idem.LeaveUnknown()}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := engine.Close(ctx); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return b
}

var errDown = errors.Join(driver.ErrUnavailable, errors.New("secret-host:6379: connection refused"))

// failStore makes the store refuse to read and to issue.
func (b *bundle) failStore(err error) {
	b.store.FailBefore("Get", idemtest.Every, err)
	b.store.FailBefore("Issue", idemtest.Every, err)
}

// protect serves h inside the adapter, and inside the middleware around it.
func (b *bundle) protect(h http.HandlerFunc, around ...func(http.Handler) http.Handler) {
	b.Helper()
	counted := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b.runs.Add(1)
		h(w, r)
	})
	handler, err := b.adapter.Protect(b.engine, b.policy, b.cfg, counted)
	if err != nil {
		b.Fatalf("Protect() = %v", err)
	}
	for _, wrap := range around {
		handler = wrap(handler)
	}
	b.url, b.client = b.listen(handler)
}

// handler returns what the adapter made, which was wired well.
func (b *bundle) handler(h http.Handler, err error) http.Handler {
	b.Helper()
	if err != nil {
		b.Fatalf("wiring: %v", err)
	}
	return h
}

func (b *bundle) listen(h http.Handler) (string, *http.Client) {
	srv := httptest.NewUnstartedServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	if b.overHTTP2 {
		listenHTTP2(srv)
	} else {
		srv.Start()
	}
	b.Cleanup(srv.Close)
	client := srv.Client()
	client.Timeout = patience
	client.Transport.(*http.Transport).DisableCompression = true
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return srv.URL, client
}

// answer is a response as the client got it.
type answer struct {
	*http.Response
	body string
	err  error // of reading the body
}

func (a answer) replayed() bool { return a.Header.Get("Idempotent-Replayed") == "true" }

const payBody = `{"from":"alice","to":"bob","amount":1250}`

// pay sends the usual request with a key.
func (b *bundle) pay(key string) answer {
	b.Helper()
	return b.send(b.request("POST", "/pay", key, payBody))
}

func (b *bundle) request(method, target, key, body string) *http.Request {
	b.Helper()
	req, err := http.NewRequest(method, b.url+target, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	return req
}

func (b *bundle) send(req *http.Request) answer {
	b.Helper()
	a, err := b.trySend(req)
	if err != nil {
		b.Fatalf("%s %s: %v", req.Method, req.URL, err)
	}
	return a
}

// trySend is send for a connection that may break.
func (b *bundle) trySend(req *http.Request) (answer, error) {
	resp, err := b.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return answer{resp, string(body), err}, nil
}

// afterwards is the answer to a repeat after the first request. A handler with a hijacked
// connection closes it before it returns, so the client may be early.
func (b *bundle) afterwards(key, body string) answer {
	b.Helper()
	for start := time.Now(); ; runtime.Gosched() {
		a := b.send(b.request("POST", "/pay", key, body))
		if !strings.Contains(a.body, string(idem.CodeInProgress)) || time.Since(start) > patience {
			return a
		}
	}
}

// want checks an answer of the handler.
func (b *bundle) want(a answer, status int, body string, replayed bool) {
	b.Helper()
	if a.StatusCode != status || a.body != body || a.err != nil || a.replayed() != replayed {
		b.Fatalf("answer = %d %q (replayed %v, error %v), want %d %q (replayed %v)",
			a.StatusCode, a.body, a.replayed(), a.err, status, body, replayed)
	}
}

// events counts the events of a type so far.
func (b *bundle) events(t telemetry.EventType) int64 { return b.seen[t].Load() }

func (b *bundle) wantRuns(n int64) {
	b.Helper()
	if got := b.runs.Load(); got != n {
		b.Fatalf("handler ran %d times, want %d", got, n)
	}
}

// operator settles the attempt of an execution from outside. With a response it completes the
// attempt, and without one it releases the attempt.
func (b *bundle) operator(ctx context.Context, resp *driver.Response) {
	x, _ := idem.FromContext(ctx)
	rec, err := b.store.Get(context.Background(), x.KeyID)
	s := driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateReleased, Response: resp,
		ResultTTL: time.Hour, KeyTTL: time.Hour, Decision: driver.Decision{By: "operator"}}
	if resp != nil {
		s.State = driver.StateCompleted
	}
	if err == nil {
		_, err = b.store.Settle(context.Background(), x.KeyID, s)
	}
	if err != nil {
		b.Errorf("settling from outside: %v", err)
	}
}

// receive waits for a signal.
func receive[T any](b *bundle, what string, c <-chan T) (v T) {
	b.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		b.Errorf("never happened: %s", what) // also called by handlers
	}
	return v
}

// eventually waits for a condition.
func (b *bundle) eventually(what string, ok func() bool) {
	b.Helper()
	for start := time.Now(); !ok(); runtime.Gosched() {
		if time.Since(start) > patience {
			b.Fatalf("never happened: %s", what)
		}
	}
}

// rawExchange sends bytes on a connection of its own and returns a reader of the answer.
func (b *bundle) rawExchange(request string) (net.Conn, *bufio.Reader) {
	b.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(b.url, "http://"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, request); err != nil {
		b.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}
