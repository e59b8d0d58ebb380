package exchangetest

import (
	"bufio"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// forwardCases are about a handler that hands its request on to a service that knows no keys. That
// service charges, and then its connection breaks before a byte of the answer. net/http sends a
// request that it takes for repeatable once more over each connection that it has kept alive.
var forwardCases = []testCase{
	{"a reverse proxy sends the request once", func(b *bundle) {
		bank := newBank(b)
		b.protect(bank.proxy().ServeHTTP)
		b.forwardOnce(bank, b.request("POST", "/pay", "k1", payBody))
	}},
	{"a client that is given the request sends it once", func(b *bundle) {
		bank := newBank(b)
		b.protect(bank.resend)
		b.forwardOnce(bank, b.request("POST", "/pay", "k1", payBody))
	}},
	{"a client that is given a request without a body sends it once", func(b *bundle) {
		bank := newBank(b)
		b.protect(bank.resend)
		b.forwardOnce(bank, b.request("POST", "/capture", "k1", ""))
	}},
	{"a request that meets the middleware twice is sent once", func(b *bundle) {
		bank := newBank(b)
		b.protect(b.again(b.policy, bank.proxy().ServeHTTP))
		b.forwardOnce(bank, b.request("POST", "/pay", "k1", payBody))
	}},
	{"a request is sent once although middleware in front has kept its body", func(b *bundle) {
		bank := newBank(b)
		b.protect(bank.resend, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(string(body))), nil }
				r.Body, _ = r.GetBody()
				next.ServeHTTP(w, r)
			})
		})
		b.forwardOnce(bank, b.request("POST", "/pay", "k1", payBody))
	}},
	{"an answer that asks to send the request elsewhere is not followed", func(b *bundle) {
		bank := newBank(b)
		b.protect(bank.resend)
		bank.redirects.Store(true)
		if a := b.pay("k1"); a.StatusCode != http.StatusTemporaryRedirect || bank.charges.Load() != 1 {
			b.Errorf("answer = %d after %d charges, want the redirect after one", a.StatusCode, bank.charges.Load())
		}
	}},
}

// forwardOnce sends a request once, after the handler's transport has several connections to the bank.
func (b *bundle) forwardOnce(bank *bank, req *http.Request) {
	b.Helper()
	bank.connect(4)
	bank.breaks.Store(true)
	a := b.send(req)
	if n := bank.charges.Load(); n != 1 || a.StatusCode != http.StatusBadGateway {
		b.Errorf("one request was answered with %d %q, and the bank charged %d times, want 502 and one charge", a.StatusCode, a.body, n)
	}
	b.wantRuns(1)
	b.wantState("k1", driver.StateUnknown)
}

// bank is a service that knows no keys.
type bank struct {
	*bundle
	url       *url.URL
	transport *http.Transport
	charges   atomic.Int64
	arrived   sync.WaitGroup
	breaks    atomic.Bool // its connections break after the charge
	redirects atomic.Bool // it sends its clients elsewhere
}

func newBank(b *bundle) *bank {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	k := &bank{bundle: b, transport: &http.Transport{MaxIdleConnsPerHost: 16}, url: &url.URL{Scheme: "http", Host: listener.Addr().String(), Path: "/"}}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() { k.serve(conn) })
		}
	})
	b.Cleanup(func() {
		k.transport.CloseIdleConnections()
		_ = listener.Close()
		served.Wait()
	})
	return k
}

func (k *bank) serve(conn net.Conn) {
	defer conn.Close()
	for r := bufio.NewReader(conn); ; {
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return
		}
		if req.URL.Path == "/connect" {
			k.arrived.Done()
			k.arrived.Wait()
		} else {
			k.charges.Add(1)
		}
		answer := "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"
		switch {
		case k.breaks.Load():
			return
		case k.redirects.Load():
			answer = "HTTP/1.1 307 Temporary Redirect\r\nLocation: /again\r\nContent-Length: 0\r\n\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}

// connect makes the transport keep n connections.
func (k *bank) connect(n int) {
	k.arrived.Add(n)
	var sent sync.WaitGroup
	for range n {
		sent.Go(func() {
			resp, err := (&http.Client{Transport: k.transport, Timeout: patience}).Get(k.url.JoinPath("connect").String())
			if err != nil {
				k.Errorf("GET /connect: %v", err)
				return
			}
			_ = resp.Body.Close()
		})
	}
	sent.Wait()
}

func (k *bank) proxy() *httputil.ReverseProxy {
	return &httputil.ReverseProxy{
		Transport: k.transport,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(k.url) },
		ErrorLog:  log.New(io.Discard, "", 0),
	}
}

// resend is a handler that forwards its request with a client.
func (k *bank) resend(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	out.URL, out.RequestURI = k.url.JoinPath(r.URL.Path), ""
	resp, err := (&http.Client{Transport: k.transport}).Do(out)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	w.WriteHeader(resp.StatusCode)
}
