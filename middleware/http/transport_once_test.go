package idemhttp_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// net/http repeats a request that it takes for idempotent over each connection that it has kept. A
// transport that is to send a request once has it sent once.
func TestTransportBoundsWhatIsSentBelowIt(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		base   func(*http.Transport) http.RoundTripper
		body   string
		header http.Header
	}{
		"a payment":              {nil, "amount=1", nil},
		"a request without body": {nil, "", nil},
		"a key of the caller":    {nil, "amount=1", http.Header{"Idempotency-Key": {"k1"}}},
		"a key of another name":  {nil, "", http.Header{"X-Idempotency-Key": {"k1"}}},
		"switched off":           {nil, "amount=1", http.Header{"Idempotency-Key": nil}},
		"a transport in between": {func(t *http.Transport) http.RoundTripper { return between{t} }, "amount=1", nil},
		"no body over another":   {func(t *http.Transport) http.RoundTripper { return between{t} }, "", nil},
		"no body over a tracer":  {func(t *http.Transport) http.RoundTripper { return wrapping{t} }, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bank := newBreakingBank(t)
			kept := &http.Transport{MaxIdleConnsPerHost: 8}
			t.Cleanup(kept.CloseIdleConnections)
			bank.connect(kept, 4)
			var base http.RoundTripper = kept
			if tt.base != nil {
				base = tt.base(kept)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, bank.url+"/charge", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if tt.header != nil {
				req.Header = tt.header
			}
			resp, err := idemhttp.MustNewTransport(base, idemhttp.WithRetryElapsed(0)).RoundTrip(req)
			if err == nil {
				_ = resp.Body.Close()
				t.Errorf("answer = %d, want a broken connection", resp.StatusCode)
			}
			if n := bank.charges.Load(); n != 1 {
				t.Errorf("the bank charged %d times, want once", n)
			}
			if key := bank.key.Load(); (key != "") == (name == "switched off") {
				t.Errorf("key = %q", key)
			}
		})
	}
}

// between is a transport around another, such as one that traces.
type between struct{ http.RoundTripper }

// breakingBank charges, and breaks the connection before it answers.
type breakingBank struct {
	url     string
	charges atomic.Int64
	key     atomic.Value
	arrived sync.WaitGroup
}

func newBreakingBank(t *testing.T) *breakingBank {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &breakingBank{url: "http://" + listener.Addr().String()}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() { b.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		served.Wait()
	})
	return b
}

func (b *breakingBank) serve(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		if req.Method == http.MethodPost {
			b.charges.Add(1)
			b.key.Store(req.Header.Get("Idempotency-Key"))
			return
		}
		b.arrived.Done()
		b.arrived.Wait()
		if _, err := io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n"); err != nil {
			return
		}
	}
}

// connect makes a transport keep n connections.
func (b *breakingBank) connect(through *http.Transport, n int) {
	b.arrived.Add(n)
	var sent sync.WaitGroup
	for range n {
		sent.Go(func() {
			if resp, err := (&http.Client{Transport: through}).Get(b.url); err == nil {
				_ = resp.Body.Close()
			}
		})
	}
	sent.Wait()
}
