package exchangetest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// created is a typical handler of a payment service.
func created(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Location", "/v1/payments/p1")
	h.Set("ETag", `"1"`)
	h.Set("Content-Disposition", "inline")
	h.Add("Content-Language", "de, en")
	h.Add("Content-Language", "fr")
	h.Add("Set-Cookie", "session=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT")
	h.Add("Set-Cookie", "theme=dark")
	h.Set("Authorization", "Bearer echoed")
	h.Set("X-Request-Id", "r1")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, `{"id":"p1"}`)
}

var replayCases = []testCase{
	{"the first outcome, status and body", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		for range 3 {
			b.want(b.pay("k1"), 201, `{"id":"p1"}`, true)
		}
		b.want(b.pay(`"k1"`), 201, `{"id":"p1"}`, true)
		b.wantRuns(1)
	}},
	{"the live response has all headers, the replay those on the list", func(b *bundle) {
		b.protect(created)
		live, again := b.pay("k1"), b.pay("k1")
		for _, name := range []string{"Content-Type", "Location", "Etag", "Content-Disposition", "Content-Language"} {
			if !slices.Equal(live.Header[name], again.Header[name]) || len(again.Header[name]) == 0 {
				b.Errorf("%s: live %q, replayed %q", name, live.Header[name], again.Header[name])
			}
		}
		if got := live.Header["X-Request-Id"]; !slices.Equal(got, []string{"r1"}) {
			b.Errorf("live X-Request-Id = %q", got)
		}
		for _, name := range []string{"X-Request-Id", "Authorization", "Set-Cookie"} {
			if got := again.Header[name]; got != nil {
				b.Errorf("replayed %s = %q, want none", name, got)
			}
		}
	}},
	{"bug 9: Set-Cookie goes to the first caller only", func(b *bundle) {
		b.protect(created)
		if got := b.pay("k1").Header["Set-Cookie"]; len(got) != 2 {
			b.Errorf("live Set-Cookie = %q, want two", got)
		}
		if got := b.pay("k1").Header["Set-Cookie"]; got != nil {
			b.Errorf("replayed Set-Cookie = %q, want none", got)
		}
	}},
	{"bug 11: values with commas stay whole, several values stay several", func(b *bundle) {
		b.protect(created)
		live := b.pay("k1")
		if got := live.Header["Set-Cookie"]; len(got) != 2 || !strings.Contains(got[0], "Wed, 21 Oct") {
			b.Errorf("live Set-Cookie = %q", got)
		}
		if got, want := b.pay("k1").Header["Content-Language"], []string{"de, en", "fr"}; !reflect.DeepEqual(got, want) {
			b.Errorf("replayed Content-Language = %q, want %q", got, want)
		}
	}},
	{"bug 10: the handler goes on when the client is gone, and a repeat gets its outcome", func(b *bundle) {
		contexts := make(chan context.Context, 1)
		watch := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				select {
				case contexts <- r.Context():
				default:
				}
				next.ServeHTTP(w, r)
			})
		}
		started, finished := make(chan struct{}), make(chan error, 1)
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			close(started)
			select {
			case <-(<-contexts).Done(): // the server has noticed
			case <-time.After(patience):
			}
			created(w, r)
			finished <- r.Context().Err()
		}, watch)
		ctx, leave := context.WithCancel(context.Background())
		go func() {
			<-started
			leave()
		}()
		if _, err := b.trySend(b.request("POST", "/pay", "k1", payBody).WithContext(ctx)); err == nil {
			b.Fatal("the client was still there")
		}
		if err := receive(b, "the handler's end", finished); err != nil {
			b.Errorf("the handler's context ended with its client: %v", err)
		}
		b.policy.DuplicateWait = patience
		b.protectAgain()
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, true)
		b.wantRuns(1)
	}},
	{"a duplicate of a running request waits where the policy says so", func(b *bundle) {
		b.policy.DuplicateWait = patience
		started, goOn := make(chan struct{}), make(chan struct{})
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			close(started)
			<-goOn
			created(w, r)
		})
		answers := make(chan answer, 2)
		for range 2 {
			go func() {
				a, err := b.trySend(b.request("POST", "/pay", "k1", payBody))
				a.err = err
				answers <- a
			}()
		}
		receive(b, "a start", started)
		close(goOn)
		first, second := receive(b, "an answer", answers), receive(b, "an answer", answers)
		if first.replayed() == second.replayed() || first.body != second.body || first.err != nil || second.err != nil {
			b.Errorf("answers %q (%v) and %q (%v), want one live and one replayed", first.body, first.replayed(), second.body, second.replayed())
		}
		b.wantRuns(1)
	}},
	{"bug 16: an outcome without a body is an outcome", func(b *bundle) {
		b.protect(func(http.ResponseWriter, *http.Request) {})
		b.want(b.pay("k1"), 200, "", false)
		b.want(b.pay("k1"), 200, "", true)
		b.wantRuns(1)
	}},
	{"bug 20: 504 is recorded and not run again", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "upstream", http.StatusGatewayTimeout) })
		b.want(b.pay("k1"), 504, "upstream\n", false)
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantRuns(1)
	}},
	{"bug 22: 429 is not stored", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			if b.runs.Load() == 1 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			created(w, r)
		})
		b.want(b.pay("k1"), 429, "", false)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, true)
		b.wantRuns(2)
	}},
	{"bug 25: 500 does not leave the key pending", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(500) })
		b.want(b.pay("k1"), 500, "", false)
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantRuns(1)
	}},
	{"what a resolver says of a failure goes to the first caller already", func(b *bundle) {
		b.policy.InDoubt = idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
			return idem.Applied(idem.Response{Status: 201, Body: []byte("applied"), Header: map[string][]string{
				"content-type": {"text/plain"}, "Set-Cookie": {"a=b"}, "Transfer-Encoding": {"chunked"},
			}}), nil
		})
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Handler", "1")
			w.WriteHeader(502)
		})
		first, again := b.pay("k1"), b.pay("k1")
		b.wantRuns(1)
		b.want(again, 201, "applied", true)
		if first.replayed() {
			b.want(first, 201, "applied", true)
		} else {
			b.want(first, 502, "", false)
		}
		for _, a := range []answer{first, again} {
			if a.replayed() && (a.Header["Set-Cookie"] != nil || a.Header["X-Handler"] != nil || a.Header.Get("Content-Type") != "text/plain") {
				b.Errorf("header of the resolver's response = %v", a.Header)
			}
		}
	}},
	{"a stored header cannot smuggle in another one", func(b *bundle) {
		b.policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			return idem.Applied(idem.Response{Status: 201, Body: []byte("applied"), Header: map[string][]string{
				"Location": {"/1\r\nSet-Cookie: a=b\r\n\r\nbody"},
			}}), nil
		})
		b.protect(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(502) })
		for range 2 {
			if a := b.pay("k1"); a.StatusCode != 201 || a.body != "applied" || a.Header["Set-Cookie"] != nil {
				b.Errorf("answer = %d %q, Set-Cookie %q, want 201 \"applied\" without a cookie", a.StatusCode, a.body, a.Header["Set-Cookie"])
			}
		}
	}},
	{"client errors are outcomes", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(402)
			fmt.Fprint(w, "insufficient-funds")
		})
		b.want(b.pay("k1"), 402, "insufficient-funds", false)
		b.want(b.pay("k1"), 402, "insufficient-funds", true)
		b.wantRuns(1)
	}},
	{"redirects are outcomes", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "/done")
			w.WriteHeader(303)
		})
		b.want(b.pay("k1"), 303, "", false)
		again := b.pay("k1")
		b.want(again, 303, "", true)
		if got := again.Header.Get("Location"); got != "/done" {
			b.Errorf("replayed Location = %q", got)
		}
	}},
}

// protectAgain serves another handler under the same engine. Only replays and refusals
// are expected.
func (b *bundle) protectAgain() {
	runs := b.runs.Load()
	b.protect(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(599) })
	b.runs.Store(runs)
}
