package exchangetest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// success is what the handlers of these cases answer. It is longer than [earlyLimit].
var success = `{"id":"p1","status":"succeeded","note":"` + strings.Repeat("x", 9000) + "\"}\n"

// earlyLimit is the MaxResponseBody of the cases with long responses.
const earlyLimit = 100

// senders are the ways in which a handler has its success sent before it returns. Each would
// reach the client as a whole without the middleware.
var senders = []struct {
	name string
	long bool // over the limit of the policy, and not flushed
	send http.HandlerFunc
}{
	{"flushed", false, func(w http.ResponseWriter, _ *http.Request) {
		announce(w)
		_, _ = io.WriteString(w, success)
		w.(http.Flusher).Flush()
	}},
	{"flushed by a ResponseController", false, func(w http.ResponseWriter, _ *http.Request) {
		announce(w)
		_, _ = io.WriteString(w, success[:10])
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, success[10:])
		_ = http.NewResponseController(w).Flush()
	}},
	{"an event stream", false, func(w http.ResponseWriter, _ *http.Request) {
		events(w)
		_, _ = io.WriteString(w, "data: "+success+"\n")
		w.(http.Flusher).Flush()
	}},
	{"an event stream with a length", false, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		w.Header().Set("Content-Length", fmt.Sprint(len("data: "+success+"\n")))
		_, _ = io.WriteString(w, "data: "+success+"\n")
		w.(http.Flusher).Flush()
	}},
	{"over the limit", true, func(w http.ResponseWriter, _ *http.Request) {
		announce(w)
		_, _ = io.WriteString(w, success)
	}},
	{"over the limit without a length", true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(201)
		for part := range strings.SplitAfterSeq(success, ",") {
			_, _ = io.WriteString(w, part)
		}
	}},
	{"over the limit with white space at its end", true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, success)
		for range 16 {
			_, _ = io.WriteString(w, strings.Repeat(" ", 1<<10))
		}
	}},
	{"http.ServeContent", true, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(success))
	}},
	{"io.Copy", true, func(w http.ResponseWriter, _ *http.Request) {
		announce(w)
		_, _ = io.Copy(w, struct{ io.Reader }{strings.NewReader(success)})
	}},
	{"without chunks", true, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Transfer-Encoding", "identity") // net/http then ends the response with the connection
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, success)
	}},
}

func announce(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", fmt.Sprint(len(success)))
	w.WriteHeader(201)
}

// surroundings are middleware outside which ends a response that was to be broken off.
var surroundings = []struct {
	name   string
	around []func(http.Handler) http.Handler
}{
	{"nothing outside", nil},
	{"a recovery outside", []func(http.Handler) http.Handler{recovering}},
	{"a compressor without Unwrap outside", []func(http.Handler) http.Handler{compress, recovering}},
	{"a writer without Unwrap outside", []func(http.Handler) http.Handler{wrap, recovering}},
	{"a writer with Unwrap outside", []func(http.Handler) http.Handler{wrapOpenly, recovering}},
}

// earlyCases are about responses of which a part may be sent before the outcome is settled. If
// the outcome turns out to be another one, the client must not take them for it.
var earlyCases = earlyMatrix()

func earlyMatrix() (cases []testCase) {
	for _, s := range senders {
		for _, around := range surroundings {
			cases = append(cases,
				testCase{"joined/COMMIT fails: " + s.name + ", " + around.name, func(b *bundle) {
					b.joinLedger().refuse()
					b.policy.MaxResponseBody = earlyLimit
					b.protect(b.pays(s.send), around.around...)
					b.wantRefusal(b.pay("k1"), idem.CodeUnavailable)
				}},
				testCase{"superseded: " + s.name + ", " + around.name, func(b *bundle) { superseded(b, s.send, around.around) }},
			)
		}
		cases = append(cases,
			testCase{"joined/COMMIT succeeds: " + s.name, func(b *bundle) {
				l := b.joinLedger()
				b.policy.MaxResponseBody = earlyLimit
				b.protect(b.pays(s.send))
				if a := b.pay("k1"); a.StatusCode > 201 || !strings.HasSuffix(strings.TrimSpace(a.body), strings.TrimSpace(success)) || a.err != nil {
					b.Errorf("answer = %d %q, %v, want the whole response", a.StatusCode, a.body, a.err)
				}
				if l.payments() != 1 {
					b.Errorf("%d payments, want 1", l.payments())
				}
				b.wantRefusal(b.pay("k1"), idem.CodeResultUnavailable)
				b.wantRuns(1)
			}},
			testCase{"superseded over HTTP/2: " + s.name, func(b *bundle) {
				b.overHTTP2 = true
				superseded(b, s.send, nil)
			}},
			testCase{"superseded over HTTP/1.0: " + s.name, func(b *bundle) {
				b.policy.MaxResponseBody = earlyLimit
				b.protect(replaced(b, s.send))
				_, r := b.rawExchange("POST /pay HTTP/1.0\r\nIdempotency-Key: k1\r\nContent-Length: 0\r\n\r\n")
				if all, _ := io.ReadAll(r); bytes.Contains(all, []byte("succeeded")) {
					b.Errorf("the client, which cannot notice a break, has %q", all)
				}
			}},
		)
	}
	return append(cases, otherEarlyCases...)
}

// replaced is a handler whose outcome another one takes the place of before it returns.
func replaced(b *bundle, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		h(w, r)
		b.operator(r.Context(), &driver.Response{Status: 201, Body: []byte("decided")})
	}
}

func superseded(b *bundle, h http.HandlerFunc, around []func(http.Handler) http.Handler) {
	b.policy.MaxResponseBody = earlyLimit
	b.protect(replaced(b, h), around...)
	a, err := b.trySend(b.request("POST", "/pay", "k1", payBody))
	if err == nil && a.err == nil && !a.replayed() {
		b.Errorf("the client took %d %q for a whole response", a.StatusCode, a.body)
	}
	if json.NewDecoder(strings.NewReader(a.body)).Decode(&struct{ ID string }{}) == nil {
		b.Errorf("the client has a whole document, %q", a.body)
	}
	again := b.send(withHeader(b.request("POST", "/pay", "k1", payBody), "Accept-Encoding", "identity"))
	b.want(again, 201, "decided", true)
	b.wantRuns(1)
}

var otherEarlyCases = []testCase{
	{"joined/a response over the second limit is dropped, and its success is told", func(b *bundle) {
		l := b.joinLedger()
		b.policy.MaxResponseBody, b.policy.MaxResponseHeld = earlyLimit, 2*earlyLimit
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Handler", "1")
			announce(w)
			for part := range strings.SplitAfterSeq(success, ",") {
				if n, err := io.WriteString(w, part); n != len(part) || err != nil {
					b.Errorf("Write() = %d, %v", n, err)
				}
			}
		}))
		a := b.pay("k1")
		b.wantRefusal(a, idem.CodeResultUnavailable)
		if a.Header["X-Handler"] != nil {
			b.Errorf("header = %v", a.Header)
		}
		b.wantRefusal(b.pay("k1"), idem.CodeResultUnavailable)
		b.wantRuns(1)
		if l.payments() != 1 {
			b.Errorf("%d payments, want 1", l.payments())
		}
	}},
	{"joined/a failure over the second limit keeps its status", func(b *bundle) {
		b.joinLedger()
		b.policy.MaxResponseBody, b.policy.MaxResponseHeld = earlyLimit, 2*earlyLimit
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(success)))
			w.WriteHeader(502)
			_, _ = io.WriteString(w, success)
		}))
		b.want(b.pay("k1"), 502, "", false)
		b.want(b.pay("k1"), 502, "", false)
		b.wantRuns(2)
	}},
	{"joined/an endless response ends with the context", func(b *bundle) {
		b.joinLedger()
		b.policy.MaxResponseBody, b.policy.MaxResponseHeld, b.policy.HandlerTimeout = earlyLimit, earlyLimit, 50*time.Millisecond
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			for {
				if _, err := io.WriteString(w, success); err != nil {
					if !errors.Is(err, context.DeadlineExceeded) {
						b.Errorf("Write() = %v, want %v", err, context.DeadlineExceeded)
					}
					return
				}
			}
		}))
		b.wantRefusal(b.pay("k1"), idem.CodeResultUnavailable)
	}},
	{"joined/a stream that is flushed is kept", func(b *bundle) {
		b.joinLedger()
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			events(w)
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, "data: a\n\n")
		}))
		b.want(b.pay("k1"), 200, "data: a\n\n", false)
		b.want(b.pay("k1"), 200, "data: a\n\n", true)
	}},
	{"a flush that sends nothing of a stream says so", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, _ *http.Request) {
			events(w)
			if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
				b.Errorf("Flush() = %v, want %v", err, http.ErrNotSupported)
			}
			_, _ = io.WriteString(w, "kept")
		}, wrap)
		b.want(b.pay("k1"), 200, "kept", false)
		b.want(b.pay("k1"), 200, "kept", true)
	}},
	{"joined/a connection cannot be hijacked", func(b *bundle) {
		b.joinLedger().refuse()
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if !errors.Is(err, http.ErrNotSupported) {
				b.Errorf("Hijack() = %v, want %v", err, http.ErrNotSupported)
			}
			if conn != nil {
				_, _ = io.WriteString(conn, "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n")
				_ = conn.Close()
			}
			w.WriteHeader(201)
		}))
		b.wantRefusal(b.pay("k1"), idem.CodeUnavailable)
	}},
	{"joined/103 Early Hints tell nothing", func(b *bundle) {
		b.joinLedger().refuse()
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/payments/1")
			w.WriteHeader(103)
			w.WriteHeader(201)
		}))
		trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			b.Errorf("the client has %d %v", code, h)
			return nil
		}}
		req := b.request("POST", "/pay", "k1", payBody)
		b.wantRefusal(b.send(req.WithContext(httptrace.WithClientTrace(context.Background(), trace))), idem.CodeUnavailable)
	}},
	{"joined/a panic after the whole response tells nothing", func(b *bundle) {
		b.joinLedger()
		b.policy.MaxResponseBody = earlyLimit
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			announce(w)
			_, _ = io.WriteString(w, success)
			w.(http.Flusher).Flush()
			panic("boom")
		}), recovering)
		if a, err := b.trySend(b.request("POST", "/pay", "k1", payBody)); err == nil && (a.StatusCode != 500 || a.body != "") {
			b.Errorf("answer = %d %q, want 500 alone", a.StatusCode, a.body)
		}
	}},
	{"panic after the whole response", func(b *bundle) {
		b.policy.MaxResponseBody = earlyLimit
		b.protect(func(w http.ResponseWriter, _ *http.Request) {
			announce(w)
			_, _ = io.WriteString(w, success)
			panic("boom")
		}, recovering)
		b.wantBrokenOff("k1")
		b.wantState("k1", driver.StateUnknown)
	}},
	{"a response without a body is complete with its head, and waits", func(b *bundle) {
		for i, status := range []int{204, 304} {
			b.protect(replaced(b, func(w http.ResponseWriter, _ *http.Request) {
				events(w)
				w.WriteHeader(status)
				w.(http.Flusher).Flush()
			}))
			b.want(b.pay(fmt.Sprint("k", i)), 201, "decided", true)
		}
	}},
	{"a response to HEAD is complete with its head, and waits", func(b *bundle) {
		b.cfg.Methods = []string{"HEAD"}
		b.protect(replaced(b, func(w http.ResponseWriter, _ *http.Request) {
			events(w)
			w.Header().Set("X-Handler", "1")
			w.(http.Flusher).Flush()
		}))
		if a := b.send(b.request("HEAD", "/pay", "k1", "")); !a.replayed() || a.Header["X-Handler"] != nil {
			b.Errorf("answer = %d %v, want the decided one", a.StatusCode, a.Header)
		}
	}},
	{"a handler that writes less than it announced", func(b *bundle) {
		b.policy.MaxResponseBody = earlyLimit
		b.protect(func(w http.ResponseWriter, _ *http.Request) {
			announce(w)
			_, _ = io.WriteString(w, success[:150])
		}, recovering)
		b.wantBrokenOff("k1")
		b.wantRefusal(b.pay("k1"), idem.CodeResultUnavailable)
	}},
	{"a handler that writes more than it announced", func(b *bundle) {
		b.policy.MaxResponseBody = earlyLimit
		b.protect(func(w http.ResponseWriter, _ *http.Request) {
			announce(w)
			_, _ = io.WriteString(w, success)
			if n, err := io.WriteString(w, "more"); n != 0 || !errors.Is(err, http.ErrContentLength) {
				b.Errorf("Write() = %d, %v, want %v", n, err, http.ErrContentLength)
			}
		})
		b.want(b.pay("k1"), 201, success, false)
	}},
	{"white space at the end", func(b *bundle) {
		b.policy.MaxResponseBody = earlyLimit
		body := success + strings.Repeat(" \n", 5000) + "\n"
		b.protect(func(w http.ResponseWriter, _ *http.Request) {
			for part := range strings.SplitAfterSeq(body, "\n") {
				_, _ = io.WriteString(w, part)
			}
		})
		b.want(b.pay("k1"), 200, body, false)
	}},
	{"a writer whose response cannot be broken off keeps it", func(b *bundle) {
		b.policy.MaxResponseBody, b.policy.MaxResponseHeld = earlyLimit, 3*earlyLimit
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, strings.Repeat("x", len(r.URL.RawQuery)*earlyLimit))
		}, wrap)
		for query, want := range map[string]int{"1": 1, "12": 2, "1234": 0} {
			a := b.send(b.request("POST", "/pay?"+query, "k"+query, payBody))
			if want == 0 {
				b.wantRefusal(a, idem.CodeResultUnavailable)
			} else {
				b.want(a, 200, strings.Repeat("x", want*earlyLimit), false)
			}
		}
	}},
	{"a short answer that is only flushed is replayed", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(201)
			_, _ = io.WriteString(w, `{"ok":`)
			w.(http.Flusher).Flush()
			_, _ = io.WriteString(w, `true}`)
			if err := http.NewResponseController(w).Flush(); err != nil {
				b.Errorf("Flush() = %v", err)
			}
		})
		b.want(b.pay("k1"), 201, `{"ok":true}`, false)
		b.want(b.pay("k1"), 201, `{"ok":true}`, true)
		b.wantRuns(1)
	}},
	{"a reverse proxy's answer of unknown length is replayed", func(b *bundle) {
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(201)
			w.(http.Flusher).Flush() // so it has no length
			_, _ = w.Write(body)
		}))
		b.Cleanup(upstream.Close)
		target, err := url.Parse(upstream.URL)
		if err != nil {
			b.Fatal(err)
		}
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
		b.protect(proxy.ServeHTTP)
		b.want(b.pay("k1"), 201, payBody, false)
		b.want(b.pay("k1"), 201, payBody, true)
		b.wantRuns(1)
	}},
}

// wrap is middleware whose writer hides the one of the server.
func wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&wrapped{w}, r)
	})
}

type wrapped struct{ http.ResponseWriter }

func (w *wrapped) Flush() { w.ResponseWriter.(http.Flusher).Flush() }

// wrapOpenly is middleware whose writer has Unwrap.
func wrapOpenly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(&unwrapping{wrapped{w}}, r)
	})
}

type unwrapping struct{ wrapped }

func (w *unwrapping) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Flush makes the compressor of this suite send what it has.
func (c *compressed) Flush() {
	_ = c.z.Flush()
	c.ResponseWriter.(http.Flusher).Flush()
}
