package exchangetest

import (
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// streamCases are about responses that the store does not keep.
var streamCases = []testCase{
	{"a flushed response arrives as it is written, and is not kept", func(b *bundle) {
		seen := make(chan struct{})
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			w.Header().Set("X-Live", "1")
			w.WriteHeader(202)
			_, _ = io.WriteString(w, "a")
			w.(http.Flusher).Flush()
			<-seen
			_, _ = io.WriteString(w, "b")
		})
		resp, err := b.client.Do(b.request("POST", "/pay", "k1", payBody))
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		first := make([]byte, 1)
		if _, err := io.ReadFull(resp.Body, first); err != nil || first[0] != 'a' || resp.Header.Get("X-Live") != "1" {
			b.Fatalf("first byte = %q, %v, header %v", first, err, resp.Header)
		}
		close(seen)
		if rest, err := io.ReadAll(resp.Body); string(rest) != "b" || err != nil {
			b.Fatalf("rest = %q, %v", rest, err)
		}
		b.wantRefusal(b.pay("k1"), idem.CodeResultUnavailable)
		b.wantRuns(1)
	}},
	{"on a route that streams, every flushed response is a stream", func(b *bundle) {
		b.cfg.Streaming = true
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "a")
			w.(http.Flusher).Flush()
		})
		b.want(b.pay("k1"), 200, "a", false)
		b.wantRefusal(b.pay("k1"), idem.CodeResultUnavailable)
		b.wantRuns(1)
	}},
	{"a flush before anything is written sends the headers", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			w.Header().Set("X-Live", "1")
			if err := http.NewResponseController(w).Flush(); err != nil {
				b.Errorf("Flush() = %v", err)
			}
			w.WriteHeader(404)
		})
		a := b.pay("k1")
		b.want(a, 200, "", false)
		if a.Header.Get("X-Live") != "1" {
			b.Errorf("header = %v", a.Header)
		}
		b.wantRefusal(b.pay("k1"), idem.CodeResultUnavailable)
	}},
	{"a response over the limit arrives whole, and is not kept", func(b *bundle) {
		b.policy.MaxResponseBody = 10
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Live", "1")
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "12345678")
			_, _ = io.WriteString(w, "90")
			_, _ = w.Write([]byte("ab"))
			_, _ = io.WriteString(w, "cd")
		})
		a := b.pay("k1")
		b.want(a, 201, "1234567890abcd", false)
		if a.Header.Get("X-Live") != "1" {
			b.Errorf("header = %v", a.Header)
		}
		b.wantRefusal(b.pay("k1"), idem.CodeResultUnavailable)
		b.wantRuns(1)
	}},
	{"a response as long as the limit is kept", func(b *bundle) {
		b.policy.MaxResponseBody = 10
		b.protect(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "1234567890") })
		b.want(b.pay("k1"), 200, "1234567890", false)
		b.want(b.pay("k1"), 200, "1234567890", true)
	}},
	{"trailers of a streamed response", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			w.Header().Set("Trailer", "X-Sum")
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, "a")
			w.Header().Set("X-Sum", "1")
		})
		a := b.pay("k1")
		b.want(a, 200, "a", false)
		if a.Trailer.Get("X-Sum") != "1" {
			b.Errorf("trailer = %v", a.Trailer)
		}
	}},
	{"a hijacked connection is the handler's, and counts as completed", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				b.Errorf("Hijack() = %v", err)
				return
			}
			defer conn.Close()
			_, _ = rw.WriteString("HTTP/1.1 418 Own\r\nContent-Length: 2\r\nConnection: close\r\n\r\nhi")
			_ = rw.Flush()
			if _, err := io.WriteString(w, "x"); err == nil {
				b.Error("Write after Hijack succeeded")
			}
			w.WriteHeader(404)
		})
		b.want(b.pay("k1"), 418, "hi", false)
		b.wantRefusal(b.afterwards("k1", payBody), idem.CodeResultUnavailable)
		b.wantRuns(1)
	}},
	{"101 and a hijack, as WebSocket libraries do it", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Upgrade", "echo")
			w.Header().Set("Connection", "Upgrade")
			w.WriteHeader(http.StatusSwitchingProtocols)
			if g, ok := w.(interface{ WriteHeaderNow() }); ok {
				g.WriteHeaderNow()
			}
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				b.Errorf("Hijack() = %v", err)
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "echo")
		})
		_, r := b.rawExchange("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nConnection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 0\r\n\r\n")
		all, _ := io.ReadAll(r)
		if s := string(all); !strings.HasPrefix(s, "HTTP/1.1 101 ") || !strings.HasSuffix(s, "\r\n\r\necho") {
			b.Errorf("connection carried %q", s)
		}
		b.wantRefusal(b.afterwards("k1", ""), idem.CodeResultUnavailable)
	}},
	{"a streamed response that is not the answer is broken off", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			_, _ = io.WriteString(w, "part")
			w.(http.Flusher).Flush()
			b.operator(r.Context(), &driver.Response{Status: 200, Omitted: true})
		})
		a, err := b.trySend(b.request("POST", "/pay", "k1", payBody))
		if err == nil && a.err == nil {
			b.Errorf("the client took %d %q for a whole response", a.StatusCode, a.body)
		}
		b.wantRuns(1)
	}},
	{"a client that reads nothing does not hold its key past the deadline", func(b *bundle) {
		b.policy.HandlerTimeout = 50 * time.Millisecond
		b.policy.MaxResponseBody = 1 << 10
		failed := make(chan error, 1)
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			chunk := make([]byte, 1<<20)
			for {
				if _, err := w.Write(chunk); err != nil {
					failed <- err
					return
				}
			}
		})
		b.rawExchange("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 0\r\n\r\n")
		receive(b, "a write that fails", failed)
		b.wantRefusal(b.afterwards("k1", ""), idem.CodeResultUnavailable)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.engine.Close(ctx); err != nil {
			b.Errorf("Close() = %v", err)
		}
	}},
	{"a handler that ends its response at the deadline reaches its client", func(b *bundle) {
		b.policy.HandlerTimeout = 50 * time.Millisecond
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			_, _ = io.WriteString(w, "late")
		})
		b.want(b.pay("k1"), 200, "late", false)
		b.want(b.pay("k2"), 200, "late", false) // over the same connection
	}},
	{"a panic breaks a streamed response off", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			_, _ = io.WriteString(w, "part")
			w.(http.Flusher).Flush()
			panic("boom")
		}, recovering)
		a, err := b.trySend(b.request("POST", "/pay", "k1", payBody))
		if err == nil && a.err == nil {
			b.Errorf("the client took %d %q for a whole response", a.StatusCode, a.body)
		}
		b.wantDoubt(b.pay("k1"), "k1", "")
	}},
}

// events makes the response one that is sent as it is flushed.
func events(w http.ResponseWriter) { w.Header().Set("Content-Type", "text/event-stream") }

// recovering swallows panics, and ends the response as if it were whole.
func recovering(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		next.ServeHTTP(w, r)
	})
}
