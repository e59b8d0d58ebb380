package server_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
)

// patience bounds the waits of these tests. Reaching it is a failure.
const patience = 20 * time.Second

// writes connects to a server, and sends the beginning of a request.
func writes(t *testing.T, url, text string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(conn, text)
	return conn
}

// A client that does not send its body loses its connection, whether or not it may do anything
// and whether or not the route reads bodies.
func TestSlowBodiesAreCutOff(t *testing.T) {
	t.Parallel()
	c := newBench(t).instance(t, func(cfg *server.Config) { cfg.BodyTimeout = 200 * time.Millisecond })
	open := map[string]net.Conn{} // by what was sent
	for _, target := range []string{"POST /v1/payments", "POST /v1/trades", "POST /v1/tokens", "GET /v1/accounts", "POST /nothing", "GET /healthz"} {
		for _, bearer := range []string{"", "Authorization: Bearer demo\r\n"} {
			for _, length := range []string{"Content-Length: 1000", "Transfer-Encoding: chunked"} {
				open[target+" "+bearer+length] = writes(t, c.url, target+" HTTP/1.1\r\nHost: x\r\nIdempotency-Key: slow\r\n"+bearer+length+"\r\n\r\n")
			}
		}
	}
	for request, conn := range open {
		if _, err := io.Copy(io.Discard, conn); err != nil {
			t.Errorf("%q: the connection is open: %v", request, err)
		}
	}
}

// A client whose body stalls is told that nothing was started, and may send it again.
func TestStalledBodyCanBeSentAgain(t *testing.T) {
	t.Parallel()
	c := newBench(t).instance(t, func(cfg *server.Config) { cfg.BodyTimeout = 200 * time.Millisecond })
	for _, begun := range []string{"Content-Length: 1000\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{"} {
		conn := writes(t, c.url, "POST /v1/payments HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo\r\nIdempotency-Key: stalled\r\n"+begun)
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusRequestTimeout || err != nil || !strings.Contains(string(body), `"code":"body-incomplete"`) || res.Header.Get("Retry-After") == "" {
			t.Errorf("answer = %d %s %v, want 408 body-incomplete with Retry-After", res.StatusCode, body, err)
		}
		_ = res.Body.Close()
	}
}

// A payment may take longer than its body may, and so may a repeat that waits for it.
func TestLongPaymentsAreNotCutOff(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	b := newBench(t)
	c := b.instance(t, func(cfg *server.Config) {
		cfg.BodyTimeout, cfg.Wait = limit, patience
		cfg.Service = &payments.Service{Ledger: b.ledger, Log: cfg.Log, Latency: limit * 3 / 2}
	})
	var conns []net.Conn
	for range 2 {
		conns = append(conns, writes(t, c.url, fmt.Sprintf("POST /v1/payments HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer demo\r\nIdempotency-Key: long\r\nContent-Length: %d\r\n\r\n%s", len(order), order)))
	}
	replayed := 0
	for _, conn := range conns {
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if res.StatusCode != http.StatusCreated || err != nil {
			t.Errorf("payment: %d %s %v, want 201", res.StatusCode, body, err)
		}
		if res.Header.Get("Idempotent-Replayed") != "" {
			replayed++
		}
		_ = res.Body.Close()
	}
	if replayed != 1 {
		t.Errorf("%d of 2 answers are replays, want 1", replayed)
	}
}

// A client that does not read its answer loses its connection, and the handler ends. A live page
// may be silent for as long as it likes.
func TestSlowReadersAreCutOff(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const limit = 200 * time.Millisecond
	ended := make(chan error, 1)
	s := &http.Server{ReadHeaderTimeout: patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/much":
			block := bytes.Repeat([]byte("x"), 1<<20)
			for range 1 << 10 { // more than a connection holds
				if _, err := w.Write(block); err != nil {
					ended <- err
					return
				}
			}
			ended <- nil
		case "/live":
			for range 3 {
				<-time.After(2 * limit) // nothing has happened meanwhile
				fmt.Fprintln(w, "news")
				_ = http.NewResponseController(w).Flush()
			}
		case "/own":
			rc := http.NewResponseController(w)
			_ = rc.SetWriteDeadline(time.Unix(1, 0))
			fmt.Fprintln(w, "late")
			ended <- rc.Flush()
		}
	})}
	served := make(chan struct{})
	go func() { defer close(served); _ = s.Serve(server.LimitWritesTo(l, limit)) }()
	defer func() { _ = s.Close(); <-served }()
	get := func(path string) net.Conn {
		return writes(t, l.Addr().String(), "GET "+path+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	}

	for _, path := range []string{"/much", "/own"} {
		get(path)
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s: the handler wrote everything, though nobody reads or its own deadline is over", path)
			}
		case <-time.After(patience):
			t.Fatalf("%s: the handler still writes", path)
		}
	}
	if text, err := io.ReadAll(get("/live")); err != nil || strings.Count(string(text), "news") != 3 {
		t.Errorf("a live page ended with %q, %v, want all its news", text, err)
	}
}
