package exchangetest

import (
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// identityCases are about when two requests are the same, and about the handler's view of a
// request.
var identityCases = []testCase{
	{"bug 6: JSON members in another order are the same request", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.want(b.send(b.request("POST", "/pay", "k1", `{ "amount":1250, "to":"b\u006fb", "from":"alice" }`)), 201, `{"id":"p1"}`, true)
		b.wantRuns(1)
	}},
	{"another request with the key is refused", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		for name, req := range map[string]*http.Request{
			"the amount":          b.request("POST", "/pay", "k1", strings.Replace(payBody, "1250", "1251", 1)),
			"the number's text":   b.request("POST", "/pay", "k1", strings.Replace(payBody, "1250", "1250.0", 1)),
			"bug 13: the query":   b.request("POST", "/pay?currency=EUR", "k1", payBody),
			"bug 14: the route":   b.request("POST", "/refund", "k1", payBody),
			"the method":          b.request("PUT", "/pay", "k1", payBody),
			"an escaped slash":    b.request("POST", "/pay%2F", "k1", payBody),
			"no body":             b.request("POST", "/pay", "k1", ""),
			"the media type":      withHeader(b.request("POST", "/pay", "k1", payBody), "Content-Type", "text/plain"),
			"the content coding":  withHeader(b.request("POST", "/pay", "k1", payBody), "Content-Encoding", "br"),
			"two content codings": withHeader(b.request("POST", "/pay", "k1", payBody), "Content-Encoding", "br", "gzip"),
		} {
			a := b.send(req)
			if b.wantRefusal(a, idem.CodeKeyReused); b.Failed() {
				b.Fatalf("with another %s", name)
			}
		}
		b.wantRuns(1)
	}},
	{"a route whose path is cut on the way is another route still", func(b *bundle) {
		b.protect(created, func(next http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/payments/", http.StripPrefix("/payments", next))
			mux.Handle("/refunds/", http.StripPrefix("/refunds", next))
			return mux
		})
		b.want(b.send(b.request("POST", "/payments/pay", "k1", payBody)), 201, `{"id":"p1"}`, false)
		b.wantRefusal(b.send(b.request("POST", "/refunds/pay", "k1", payBody)), idem.CodeKeyReused)
		b.wantRuns(1)
	}},
	{"an absolute-form request whose path is cut on the way is another route, too", func(b *bundle) {
		b.protect(created, func(next http.Handler) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/payments/", http.StripPrefix("/payments", next))
			mux.Handle("/refunds/", http.StripPrefix("/refunds", next))
			return mux
		})
		absolute := func(path string) answer {
			_, r := b.rawExchange("POST http://a" + path + " HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Length: 0\r\n\r\n")
			resp, err := http.ReadResponse(r, nil)
			if err != nil {
				b.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			return answer{resp, string(body), err}
		}
		b.want(absolute("/payments/pay"), 201, `{"id":"p1"}`, false)
		b.wantRefusal(absolute("/refunds/pay"), idem.CodeKeyReused)
		b.want(absolute("/payments/pay"), 201, `{"id":"p1"}`, true)
		b.want(b.send(b.request("POST", "/payments/pay", "k1", "")), 201, `{"id":"p1"}`, true)
		b.wantRuns(1)
	}},
	{"a body that was read in front is refused, not taken for another", func(b *bundle) {
		var read func(w http.ResponseWriter, r *http.Request)
		b.protect(created, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				read(w, r)
				next.ServeHTTP(w, r)
			})
		})
		decode := func(w http.ResponseWriter, r *http.Request) {
			var order any
			if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
				b.Errorf("Decode() = %v", err)
			}
		}
		for name, by := range map[string]func(w http.ResponseWriter, r *http.Request){
			"whole":            func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
			"whole, and taken": func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body); r.Body = nil },
			"by a decoder":     decode,
			"by a decoder with a limit": func(w http.ResponseWriter, r *http.Request) {
				r.Body = http.MaxBytesReader(w, r.Body, 1<<20)
				decode(w, r)
			},
		} {
			read = by
			for _, req := range []*http.Request{b.request("POST", "/pay", "k1", payBody), chunked(payBody)(b)} {
				if b.wantRefusal(b.send(req), idem.CodeInternal); b.Failed() {
					b.Fatalf("with a body that was read %s", name)
				}
			}
		}
		for name, wrap := range map[string]func(w http.ResponseWriter, r *http.Request){
			"as it is":     func(http.ResponseWriter, *http.Request) {},
			"with a limit": func(w http.ResponseWriter, r *http.Request) { r.Body = http.MaxBytesReader(w, r.Body, 1<<20) },
		} {
			read = func(w http.ResponseWriter, r *http.Request) {
				wrap(w, r)
				_, _ = io.CopyN(io.Discard, r.Body, 10)
			}
			req := withHeader(b.request("POST", "/pay", "k1", payBody), "Content-Type", "text/plain")
			if b.wantRefusal(b.send(req), idem.CodeInternal); b.Failed() {
				b.Fatalf("with a body that was read in part, %s", name)
			}
		}
		b.wantNothing()
	}},
	{"a body that was read in front, over HTTP/2 without its length, is refused", func(b *bundle) {
		b.overHTTP2 = true
		b.protect(created, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				next.ServeHTTP(w, r)
			})
		})
		b.wantRefusal(b.send(chunked(payBody)(b)), idem.CodeInternal)
		b.wantNothing()
	}},
	{"bug 26: the same body under another key is another request", func(b *bundle) {
		b.protect(created)
		for _, key := range []string{"k1", "k2", "K1"} {
			b.want(b.pay(key), 201, `{"id":"p1"}`, false)
		}
		b.wantRuns(3)
	}},
	{"scopes do not share keys", func(b *bundle) {
		b.policy.Scope = nil
		b.cfg.Scope = func(r *http.Request) (string, error) { return r.Header.Get("X-Merchant"), nil }
		b.protect(created)
		for _, merchant := range []string{"m1", "m2"} {
			b.want(b.send(withHeader(b.request("POST", "/pay", "k1", payBody), "X-Merchant", merchant)), 201, `{"id":"p1"}`, false)
		}
		b.wantRuns(2)
	}},
	{"an operation of its own name can be reached by several paths", func(b *bundle) {
		b.cfg.Operation = func(r *http.Request) string { return "pay" }
		b.protect(created)
		b.want(b.send(b.request("POST", "/v1/pay", "k1", payBody)), 201, `{"id":"p1"}`, false)
		b.want(b.send(b.request("POST", "/v2/pay", "k1", payBody)), 201, `{"id":"p1"}`, true)
	}},
	{"the handler reads the body", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			if err != nil || r.ContentLength != int64(len(body)) || r.GetBody != nil || r.TransferEncoding != nil {
				b.Errorf("body %q, %v, ContentLength %d, TransferEncoding %v, GetBody %v", body, err, r.ContentLength, r.TransferEncoding, r.GetBody != nil)
			}
			_, _ = w.Write(body)
		})
		b.want(b.pay("k1"), 200, payBody, false)
		chunked := b.request("POST", "/pay", "k2", payBody)
		chunked.ContentLength, chunked.Body = -1, io.NopCloser(strings.NewReader(payBody))
		b.want(b.send(chunked), 200, payBody, false)
		large := strings.Repeat("x", 600<<10)
		b.want(b.send(withHeader(b.request("POST", "/pay", "k3", large), "Content-Type", "text/plain")), 200, large, false)
		b.want(b.send(b.request("POST", "/pay", "k4", "")), 200, "", false)
	}},
	{"a compressed request body is taken as it was received", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			z, err := gzip.NewReader(r.Body)
			if err != nil {
				b.Error(err)
				return
			}
			_, _ = io.Copy(w, z)
		})
		for _, replayed := range []bool{false, true} {
			req := withHeader(b.request("POST", "/pay", "k1", zipped(payBody)), "Content-Encoding", "gzip")
			b.want(b.send(req), 200, payBody, replayed)
		}
	}},
	{"a body that was read and closed in front is refused", func(b *bundle) {
		b.protect(created, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = r.Body.Close()
				next.ServeHTTP(w, r)
			})
		})
		b.wantRefusal(b.send(chunked(payBody)(b)), idem.CodeInternal)
		b.wantNothing()
	}},
	{"a form whose fields come in another order is the same request", func(b *bundle) {
		b.protect(created)
		form := func(body string) answer {
			return b.send(withHeader(b.request("POST", "/pay", "k1", body), "Content-Type", "application/x-www-form-urlencoded"))
		}
		b.want(form("to=b+ob&amount=1250"), 201, `{"id":"p1"}`, false)
		b.want(form("amount=1250&to=%62%20ob"), 201, `{"id":"p1"}`, true)
		b.wantRefusal(form("amount=1251&to=b+ob"), idem.CodeKeyReused)
		b.wantRuns(1)
	}},
	{"a client key on a token route is no token", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.policy.IssuedTokens = true
		b.protectAgain()
		b.wantRefusal(b.pay("k1"), idem.CodeTokenUnknown)
		b.wantRuns(1)
	}},
	{"a form is there to be parsed", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.FormValue("amount")) })
		req := withHeader(b.request("POST", "/pay", "k1", "amount=1250"), "Content-Type", "application/x-www-form-urlencoded")
		b.want(b.send(req), 200, "1250", false)
	}},
	{"the handler's context is that of an execution", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			x, ok := idem.FromContext(r.Context())
			if !ok || x.Attempt != 1 || x.OperationID == "" {
				b.Errorf("FromContext() = %+v, %v", x, ok)
			}
			if key, err := idem.DownstreamKey(r.Context(), "bank"); key == "" || err != nil {
				b.Errorf("DownstreamKey() = %q, %v", key, err)
			}
			if _, err := idem.CheckOwner(r.Context()); err != nil {
				b.Errorf("CheckOwner() = %v", err)
			}
		})
		b.pay("k1")
		b.wantRuns(1)
	}},
	{"issued tokens", func(b *bundle) {
		b.policy.IssuedTokens = true
		b.protect(created)
		var issued struct {
			Token     string    `json:"token"`
			ExpiresAt time.Time `json:"expires_at"`
		}
		for _, ttl := range []time.Duration{0, time.Hour} {
			tokens, client := b.listen(b.handler(b.adapter.Tokens(b.engine, b.policy, ttl)))
			resp, err := client.Post(tokens+"/v1/tokens", "", nil)
			if err != nil {
				b.Fatal(err)
			}
			defer resp.Body.Close()
			want := cmp.Or(ttl, idem.DefaultTokenTTL)
			if err := json.NewDecoder(resp.Body).Decode(&issued); err != nil || resp.StatusCode != 201 ||
				resp.Header.Get("Cache-Control") != "no-store" || time.Until(issued.ExpiresAt).Round(5*time.Minute) != want {
				b.Fatalf("token handler answered %d, %+v, %v, want a token for %v", resp.StatusCode, issued, err, want)
			}
		}
		b.wantRefusal(b.pay("k1"), idem.CodeTokenUnknown)
		b.want(b.pay(issued.Token), 201, `{"id":"p1"}`, false)
		b.want(b.pay(issued.Token), 201, `{"id":"p1"}`, true)
		b.policy.IssuedTokens = false
		b.protectAgain()
		b.wantRefusal(b.pay(issued.Token), idem.CodeKeyReused)
		b.wantRuns(1)
	}},
	{"the scope sees what authentication left in the context", func(b *bundle) {
		type principal struct{}
		b.policy.Scope = func(ctx context.Context) (string, error) {
			s, _ := ctx.Value(principal{}).(string)
			return s, nil
		}
		b.protect(created, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), principal{}, "m1")))
			})
		})
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		status, client := b.listen(b.handler(b.adapter.Status(b.engine, b.policy, b.cfg)))
		req, _ := http.NewRequest("GET", status, nil)
		req.Header.Set("Idempotency-Key", "k1")
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != 500 {
			b.Errorf("status without a principal = %d, want 500", resp.StatusCode)
		}
	}},
}

func withHeader(r *http.Request, name string, values ...string) *http.Request {
	r.Header[http.CanonicalHeaderKey(name)] = values
	return r
}
