package exchangetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// writerCases are about what a handler may do with its ResponseWriter.
var writerCases = []testCase{
	{"Write without WriteHeader", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "a")
			_, _ = w.Write([]byte("b"))
		})
		b.want(b.pay("k1"), 200, "ab", false)
		b.want(b.pay("k1"), 200, "ab", true)
	}},
	{"a second WriteHeader is ignored", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "a")
			w.WriteHeader(404)
		})
		b.want(b.pay("k1"), 201, "a", false)
		b.want(b.pay("k1"), 201, "a", true)
	}},
	{"headers set after the first byte are ignored", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/1")
			_, _ = io.WriteString(w, "a")
			w.Header().Set("Location", "/2")
		})
		for range 2 {
			if got := b.pay("k1").Header.Get("Location"); got != "/1" {
				b.Errorf("Location = %q, want /1", got)
			}
		}
	}},
	{"the handler sees, changes and deletes headers from outside", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			if w.Header().Get("X-Outer") != "1" {
				b.Errorf("handler's header = %v", w.Header())
			}
			w.Header().Del("X-Outer")
			w.Header().Set("X-Other", "handler")
		}, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Outer", "1")
				w.Header().Set("X-Other", "outer")
				next.ServeHTTP(w, r)
			})
		})
		live, again := b.pay("k1"), b.pay("k1")
		if live.Header["X-Outer"] != nil || live.Header.Get("X-Other") != "handler" {
			b.Errorf("live header = %v", live.Header)
		}
		if again.Header.Get("X-Outer") != "1" || again.Header.Get("X-Other") != "outer" {
			b.Errorf("replayed header = %v, want that of the outer middleware", again.Header)
		}
	}},
	{"what middleware outside says about the body is kept with it", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, w.Header().Get("Content-Type")+" in "+w.Header().Get("Content-Language"))
		}, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", r.Header.Get("Accept"))
				w.Header().Set("Content-Language", r.Header.Get("Accept-Language"))
				next.ServeHTTP(w, r)
			})
		})
		for i, accept := range []string{"application/json", "application/xml"} {
			req := withHeader(b.request("POST", "/pay", "k1", payBody), "Accept", accept)
			a := b.send(withHeader(req, "Accept-Language", []string{"de", "fr"}[i]))
			b.want(a, 200, "application/json in de", i > 0)
			if a.Header.Get("Content-Type") != "application/json" || a.Header.Get("Content-Language") != "de" {
				b.Errorf("answer %d = %q with %v, want the headers of its body", i, a.body, a.Header)
			}
		}
	}},
	{"204 has no body", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(204)
			if _, err := io.WriteString(w, "x"); err == nil {
				b.Error("a body was written to 204")
			}
		})
		b.want(b.pay("k1"), 204, "", false)
		b.want(b.pay("k1"), 204, "", true)
	}},
	{"304 keeps its validator", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"1"`)
			w.WriteHeader(304)
		})
		b.want(b.pay("k1"), 304, "", false)
		again := b.pay("k1")
		b.want(again, 304, "", true)
		if got := again.Header.Get("Etag"); got != `"1"` {
			b.Errorf("replayed ETag = %q", got)
		}
	}},
	{"HEAD has no body and its length", func(b *bundle) {
		b.cfg.Methods = []string{"HEAD"}
		b.protect(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "abc") })
		for _, replayed := range []bool{false, true} {
			a := b.send(b.request("HEAD", "/pay", "k1", ""))
			b.want(a, 200, "", replayed)
			if a.ContentLength != 3 {
				b.Errorf("Content-Length = %d, want 3", a.ContentLength)
			}
		}
		b.wantRuns(1)
	}},
	{"Content-Length is the server's or the handler's", func(b *bundle) {
		large := strings.Repeat("x", 100<<10)
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
			_, _ = io.WriteString(w, large)
		})
		live := b.pay("k1")
		b.want(live, 200, large, false)
		if live.ContentLength != int64(len(large)) {
			b.Errorf("live Content-Length = %d", live.ContentLength)
		}
		b.want(b.pay("k1"), 200, large, true)
	}},
	{"bug 17: a compressed response is replayed with its encoding", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Type", "text/plain")
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, "compressed")
			_ = z.Close()
		})
		for range 2 {
			a := b.send(withHeader(b.request("POST", "/pay", "k1", payBody), "Accept-Encoding", "gzip"))
			z, err := gzip.NewReader(strings.NewReader(a.body))
			if a.Header.Get("Content-Encoding") != "gzip" || err != nil {
				b.Fatalf("answer %q, %v, error %v", a.body, a.Header, err)
			}
			if plain, err := io.ReadAll(z); string(plain) != "compressed" {
				b.Errorf("body = %q, %v", plain, err)
			}
		}
	}},
	{"a compressed response is replayed to a client that does not accept it", func(b *bundle) {
		b.policy.MaxResponseHeld = 2 << 20
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Encoding", "gzip")
			h.Set("Etag", `"1"`)
			h.Set("Content-Type", "text/plain")
			text := "compressed"
			switch key := r.Header.Get("Idempotency-Key"); key {
			case "br", "gzip-br":
				h.Set("Content-Encoding", strings.ReplaceAll(key, "-", ", "))
			case "long":
				text = strings.Repeat("x", int(b.policy.MaxResponseHeld)+1)
			}
			z := gzip.NewWriter(w)
			_, _ = io.WriteString(z, text)
			_ = z.Close()
		})
		const form, other = "gzip", "result-unavailable"
		for _, tt := range []struct {
			key    string
			accept []string // nil for none
			want   string
		}{
			{"k1", []string{"gzip"}, form}, {"k1", []string{"br, x-gzip;q=0.5"}, form}, {"k1", []string{"deflate", "*"}, form}, {"k1", []string{"GZIP"}, form},
			{"k1", nil, "compressed"}, {"k1", []string{""}, "compressed"}, {"k1", []string{"identity"}, "compressed"},
			{"k1", []string{"br, gzip;q=0"}, "compressed"}, {"k1", []string{"*, gzip; q=0.000"}, "compressed"}, {"k1", []string{"*;q=0"}, "compressed"},
			{"br", nil, "br"}, {"br", []string{"gzip, br"}, "br"}, {"br", []string{"gzip"}, other},
			{"gzip-br", []string{"br, gzip"}, "gzip, br"}, {"gzip-br", []string{"gzip"}, other},
			{"long", []string{"gzip"}, form}, {"long", []string{"identity"}, other},
		} {
			b.send(withHeader(b.request("POST", "/pay", tt.key, payBody), "Accept-Encoding", "gzip, br"))
			req := b.request("POST", "/pay", tt.key, payBody)
			if tt.accept != nil {
				req.Header["Accept-Encoding"] = tt.accept
			}
			a := b.send(req)
			encoding, etag := a.Header.Get("Content-Encoding"), a.Header.Get("Etag")
			switch tt.want {
			case other:
				b.wantRefusal(a, idem.CodeResultUnavailable)
				continue
			case "compressed":
				if a.body != "compressed" || encoding != "" || etag != `W/"1"` || a.ContentLength != int64(len(a.body)) {
					b.Errorf("key %q, Accept-Encoding %q: answer %q, %v, want the plain text", tt.key, tt.accept, a.body, a.Header)
				}
			default:
				if encoding != tt.want || etag != `"1"` {
					b.Errorf("key %q, Accept-Encoding %q: Content-Encoding = %q, ETag %s, want %q", tt.key, tt.accept, encoding, etag, tt.want)
				}
			}
			if !a.replayed() || !slices.Equal(a.Header["Vary"], []string{"Accept-Encoding"}) {
				b.Errorf("key %q, Accept-Encoding %q: replayed %v, Vary %q", tt.key, tt.accept, a.replayed(), a.Header["Vary"])
			}
		}
		b.wantRuns(4)
	}},
	{"bug 17: what a compressor outside does is not stored", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "plain") }, compress)
		for i, accept := range []string{"gzip", "", "gzip"} {
			a := b.send(withHeader(b.request("POST", "/pay", "k1", payBody), "Accept-Encoding", accept))
			body := a.body
			if encoding := a.Header.Get("Content-Encoding"); encoding != accept {
				b.Errorf("request %d: Content-Encoding = %q, want %q", i, encoding, accept)
			} else if accept == "gzip" {
				z, err := gzip.NewReader(strings.NewReader(body))
				if err != nil {
					b.Fatal(err)
				}
				plain, _ := io.ReadAll(z)
				body = string(plain)
			}
			if body != "plain" || a.replayed() != (i > 0) {
				b.Errorf("request %d: body = %q, replayed %v", i, body, a.replayed())
			}
		}
		b.wantRuns(1)
	}},
	{"trailers reach the first caller and are not stored", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Trailer", "X-Sum, X-Other")
			_, _ = io.WriteString(w, "a")
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"X-Late", "2")
			w.Header().Set("X-None", "3")
		})
		live := b.pay("k1")
		b.want(live, 200, "a", false)
		if live.Trailer.Get("X-Sum") != "1" || live.Trailer.Get("X-Late") != "2" || live.Trailer.Get("X-None") != "" {
			b.Errorf("live trailer = %v", live.Trailer)
		}
		again := b.pay("k1")
		b.want(again, 200, "a", true)
		if len(again.Trailer) != 0 {
			b.Errorf("replayed trailer = %v", again.Trailer)
		}
	}},
	{"103 Early Hints goes out before the outcome is known, and only then", func(b *bundle) {
		hinted := make(chan struct{})
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(103)
			receive(b, "the hint", hinted)
			w.Header().Del("Link")
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "a")
		})
		var hints []textproto.MIMEHeader
		trace := &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
			hints = append(hints, h)
			close(hinted)
			return nil
		}}
		req := b.request("POST", "/pay", "k1", payBody)
		live := b.send(req.WithContext(httptrace.WithClientTrace(context.Background(), trace)))
		b.want(live, 201, "a", false)
		if len(hints) != 1 || hints[0].Get("Link") == "" || live.Header.Get("Link") != "" {
			b.Errorf("hints = %v, live header %v", hints, live.Header)
		}
		b.want(b.pay("k1"), 201, "a", true)
	}},
	{"what went out with a 103 does not stay for a refusal", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Handler", "1")
			w.WriteHeader(103)
			x, _ := idem.FromContext(r.Context())
			b.lock.Revoke(x.KeyID)
			b.operator(r.Context(), nil)
		})
		b.wantRefusal(b.pay("k1"), idem.CodeOwnershipLost)
	}},
	{"Expect: 100-continue is answered when the body is read", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })
		conn, r := b.rawExchange("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n")
		line, err := r.ReadString('\n')
		if err != nil || !strings.Contains(line, " 100 ") {
			b.Fatalf("first line = %q, %v", line, err)
		}
		_, _ = r.ReadString('\n')
		_, _ = io.WriteString(conn, "hello")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			b.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		b.want(answer{resp, string(body), err}, 200, "hello", false)
	}},
	{"a status that is none counts as the handler's panic", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(99)
			_, _ = io.WriteString(w, "x")
		})
		if a, err := b.trySend(b.request("POST", "/pay", "k1", payBody)); err == nil && a.StatusCode == 200 {
			b.Errorf("answer = %d %q", a.StatusCode, a.body)
		}
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantRuns(1)
	}},
	{"a stored response is not shared with the handlers around", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Add("Content-Language", "en")
			_, _ = io.WriteString(w, "a")
		}, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r)
				if v := w.Header()["Content-Language"]; len(v) > 0 {
					v[0] = "overwritten"
				}
			})
		})
		for range 3 {
			if got := b.pay("k1").Header.Get("Content-Language"); got != "en" && got != "overwritten" {
				b.Errorf("Content-Language = %q", got)
			}
		}
		id := idem.NewKeyID("merchant", "k1")
		rec, err := b.store.Get(context.Background(), id)
		if err != nil || rec.Response.Header["Content-Language"][0] != "en" {
			b.Errorf("stored header = %v, %v", rec.Response.Header, err)
		}
	}},
}

// compress is a typical compressor around a handler. It announces the encoding up front.
func compress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "gzip" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Add("Vary", "Accept-Encoding")
		z := gzip.NewWriter(w)
		next.ServeHTTP(&compressed{w, z}, r)
		_ = z.Close()
	})
}

type compressed struct {
	http.ResponseWriter
	z *gzip.Writer
}

func (c *compressed) Write(p []byte) (int, error) { return c.z.Write(bytes.Clone(p)) }
