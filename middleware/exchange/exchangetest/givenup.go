package exchangetest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// givenUpCases are about handlers that begin a response and end with another outcome.
var givenUpCases = []testCase{
	{"a panic in mid-body that is recovered inside is in doubt", func(b *bundle) {
		b.protect(recovering(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/1")
			w.WriteHeader(201)
			_, _ = io.WriteString(w, `{"id":`)
			panic("boom")
		})).ServeHTTP)
		a := b.pay("k1")
		b.want(a, 500, "", false)
		if a.Header["Location"] != nil {
			b.Errorf("header = %v", a.Header)
		}
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantState("k1", driver.StateUnknown)
		b.wantRuns(1)
	}},
	{"an error after the body was begun takes its place", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "half")
			http.Error(w, "sorry", http.StatusBadGateway)
		})
		a := b.pay("k1")
		b.want(a, 502, "sorry\n", false)
		if got := a.Header.Get("Content-Type"); got != "text/plain; charset=utf-8" {
			b.Errorf("Content-Type = %q", got)
		}
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantState("k1", driver.StateUnknown)
	}},
	{"a panic that is recovered inside breaks a streamed response off", func(b *bundle) {
		b.protect(recovering(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			_, _ = io.WriteString(w, "part")
			w.(http.Flusher).Flush()
			panic("boom")
		})).ServeHTTP)
		b.wantBrokenOff("k1")
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantState("k1", driver.StateUnknown)
	}},
	{"a panic after the connection was hijacked, recovered inside, is in doubt", func(b *bundle) {
		b.protect(recovering(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				b.Errorf("Hijack() = %v", err)
				return
			}
			conn.Close()
			panic("boom")
		})).ServeHTTP)
		_, _ = b.trySend(b.request("POST", "/pay", "k1", payBody))
		b.wantDoubt(b.afterwards("k1", payBody), "k1", "")
		b.wantState("k1", driver.StateUnknown)
	}},
	{"a hijack that fails leaves the response as it was", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			if _, _, err := w.(http.Hijacker).Hijack(); !errors.Is(err, errHijack) {
				b.Errorf("Hijack() = %v, want %v", err, errHijack)
			}
			http.Error(w, "no upgrade", 500)
		}, withoutHijack)
		b.want(b.pay("k1"), 500, "no upgrade\n", false)
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantState("k1", driver.StateUnknown)
	}},
	{"a connection that cannot be hijacked leaves the response as it was", func(b *bundle) {
		b.overHTTP2 = true
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(101)
			if _, _, err := http.NewResponseController(w).Hijack(); !errors.Is(err, http.ErrNotSupported) {
				b.Errorf("Hijack() = %v, want %v", err, http.ErrNotSupported)
			}
			http.Error(w, "no upgrade", 500)
		})
		b.want(b.pay("k1"), 500, "no upgrade\n", false)
		b.wantState("k1", driver.StateUnknown)
	}},
	{"a stream that others have settled is broken off", supersededStream},
	{"a stream over HTTP/2 that others have settled is broken off", func(b *bundle) {
		b.overHTTP2 = true
		supersededStream(b)
	}},
	{"a stream whose outcome a resolver has decided is broken off", func(b *bundle) {
		b.policy.InDoubt = idem.AskResolver(applied)
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			w.WriteHeader(503)
			_, _ = io.WriteString(w, "part")
			w.(http.Flusher).Flush()
		})
		b.wantBrokenOff("k1")
		b.want(b.pay("k1"), 201, "resolved", true)
	}},
}

// supersededStream stores another answer while a stream is under way. The client must not take
// the stream for the answer.
func supersededStream(b *bundle) {
	b.protect(func(w http.ResponseWriter, r *http.Request) {
		events(w)
		_, _ = io.WriteString(w, "part")
		w.(http.Flusher).Flush()
		b.operator(r.Context(), &driver.Response{Status: 201, Body: []byte("decided")})
	}, recovering)
	b.wantBrokenOff("k1")
	b.want(b.pay("k1"), 201, "decided", true)
	b.wantRuns(1)
}

// wantBrokenOff sends a request. The client must not take the response for a whole one.
func (b *bundle) wantBrokenOff(key string) {
	b.Helper()
	a, err := b.trySend(b.request("POST", "/pay", key, payBody))
	if err == nil && a.err == nil {
		b.Errorf("the client took %d %q for a whole response", a.StatusCode, a.body)
	}
}

func (b *bundle) wantState(key string, want driver.State) {
	b.Helper()
	got, err := b.engine.Status(b.Context(), "merchant", idem.Key(key))
	if err != nil || got.State != want {
		b.Errorf("Status(%q) = %v, %v, want %v", key, got.State, err, want)
	}
}

var errHijack = errors.New("cannot be hijacked")

// withoutHijack is a server that offers Hijack and refuses it.
func withoutHijack(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { next.ServeHTTP(notHijacked{w}, r) })
}

type notHijacked struct{ http.ResponseWriter }

func (notHijacked) Hijack() (net.Conn, *bufio.ReadWriter, error) { return nil, nil, errHijack }

// listenHTTP2 makes a server speak HTTP/2.
func listenHTTP2(srv *httptest.Server) {
	srv.EnableHTTP2 = true
	srv.StartTLS()
}
