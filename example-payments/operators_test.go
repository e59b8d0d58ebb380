package main

import (
	"bytes"
	"encoding/base64"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// ask sends a request, with a form if there is one, as an operator if there is a name, and returns the answer after redirects.
func ask(t *testing.T, method, address, name, password string, form url.Values) (res *http.Response, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if name != "" {
		req.SetBasicAuth(name, password)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	return send(t, req)
}

// consoleAs asks for a page of the console, "" for the first one.
func consoleAs(t *testing.T, url, path, name, password string) (status int, body string) {
	t.Helper()
	res, body := ask(t, http.MethodGet, url+"/console/"+path, name, password, nil)
	return res.StatusCode, body
}

func TestConsoleIsForOperators(t *testing.T) {
	t.Parallel()
	p := serve(t, "--operators", "ada=secret")
	for _, tt := range []struct {
		name, password string
		want           int
	}{{"", "", 401}, {"ada", "wrong", 401}, {"ops", "ops", 401}, {"ada", "secret", 200}} {
		status, body := consoleAs(t, p.url, "", tt.name, tt.password)
		if status != tt.want || (status == 200) != strings.Contains(body, "Outcomes in doubt") {
			t.Errorf("/console/ as %q: %d, want %d:\n%s", tt.name, status, tt.want, body)
		}
	}
	p.want(201, "POST", "/v1/payments", "seen", orderBody)
	id := idem.NewKeyID("merchant_demo", "seen")
	if _, body := consoleAs(t, p.url, "key/"+id.String(), "ada", "secret"); !strings.Contains(body, "Seen by this instance") {
		t.Errorf("the story of the key tells nothing that the instance saw:\n%s", body)
	}
}

// settled sends the open form of a page as a browser does, with a reason and the confirmation.
func settled(t *testing.T, address, page string) {
	t.Helper()
	_, open, _ := strings.Cut(page, "<details name=\"outcome\"")
	open, _, _ = strings.Cut(open, "</details>")
	form := url.Values{"reason": {"found"}}
	for _, m := range regexp.MustCompile(`(?s)<input [^>]*name="([a-z-]+)"[^>]*value="([^"]*)"|<textarea id="s-(body)"[^>]*>\n(.*?)</textarea>|<code>(\w+)</code> to (confirm)`).FindAllStringSubmatch(open, -1) {
		form.Set(m[1]+m[3]+m[6], html.UnescapeString(m[2]+m[4]+m[5]))
	}
	res, body := ask(t, http.MethodPost, address+"/settle", "ada", "secret", form)
	if res.StatusCode != http.StatusOK || !strings.Contains(body, ": it took effect. The client sends the same request") {
		t.Fatalf("%v leads to %d\n%s", form, res.StatusCode, body)
	}
}

// The page has found the payment, of whichever merchant. Settled as it is, the repeat gets what the
// handler would have answered.
func TestOperatorConfirmsWhatTheLedgerHas(t *testing.T) {
	t.Parallel()
	p := serve(t, "--token-store", "memory", "--resolver", "none", "--operators", "ada=secret")
	const order = `{"from":"alice","to":"bob","amount":1205,"currency":"USD","note":"<a\"}],\"has_more\":1"}`
	pay := func(merchant, key, crash string) (res *http.Response, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/payments", strings.NewReader(order))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": {"Bearer " + merchant}, "Idempotency-Key": {key}, "Demo-Crash": {crash}}
		return send(t, req)
	}
	for _, merchant := range []string{"demo", "test"} {
		normal, _ := pay(merchant, "normal", "")
		if lost, body := pay(merchant, "lost", "1"); lost.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("a charge that fails in its middle: %d %s", lost.StatusCode, body)
		}
		path := "key/" + idem.NewKeyID("merchant_"+merchant, "lost").String()
		_, page := consoleAs(t, p.url, path, "ada", "secret")
		if doubt := "ledger-unavailable"; !strings.Contains(page, doubt) {
			t.Errorf("want %q in\n%s", doubt, page)
		}
		found := regexp.MustCompile(`The service found:</b> (pay_\w+): 12\.05 USD from alice to bob, of merchant_` + merchant + `<`).FindStringSubmatch(page)
		if found == nil {
			t.Fatalf("the page has not found the payment:\n%s", page)
		}
		settled(t, p.url+"/console/"+path, page)
		got, body := pay(merchant, "lost", "")
		if got.StatusCode != normal.StatusCode || got.Header.Get("Content-Type") != normal.Header.Get("Content-Type") || got.Header.Get("Location") != "/v1/payments/"+found[1] || got.Header.Get("Idempotent-Replayed") != "true" {
			t.Errorf("a repeat gets %d %v, want an answer such as %d %v", got.StatusCode, got.Header, normal.StatusCode, normal.Header)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/v1/payments/"+found[1], http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+merchant)
		if _, want := send(t, req); body != want {
			t.Errorf("a repeat gets %s, want the payment %s", body, want)
		}
	}
}

// The ledger tells of both transports. It does not call a payment missing that may be in the ledger of
// another instance, and shows no address.
func TestLookUpOfTheSample(t *testing.T) {
	t.Parallel()
	l, err := ledger.Open(t.Context(), "", ledger.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	a := &App{ledger: l, log: slog.New(slog.DiscardHandler)}
	if got, err := a.lookUp(t.Context(), "POST /v1/payments", "op"); err != nil || !got.Nothing || got.Says != "" {
		t.Errorf("without a payment it says %+v, %v", got, err)
	}
	a.cfg.TokenStore = storeRedis
	if got, err := a.lookUp(t.Context(), "POST /v1/payments", "op"); err != nil || got.Nothing || got.Says != "" {
		t.Errorf("without a payment in a ledger of its own it says %+v, %v", got, err)
	}
	if err := l.AddMerchant(t.Context(), "merchant_demo"); err != nil {
		t.Fatal(err)
	}
	made := payments.NewPayment("op", payments.Order{From: "alice", To: "bob", Amount: 5, Currency: "USD"}, time.Now())
	if err := l.Pay(t.Context(), "merchant_demo", made, driver.Fence{Domain: "d", Token: 1}); err != nil {
		t.Fatal(err)
	}
	for _, route := range []string{"POST /v1/payments", "/payments.v1.PaymentService/CreatePayment"} {
		want, err := answer(route, made)
		if err != nil {
			t.Fatal(err)
		}
		got, err := a.lookUp(t.Context(), route, "op")
		if err != nil || !strings.HasPrefix(got.Says, made.ID+": 0.05 USD from alice to bob, of merchant_demo") || !reflect.DeepEqual(got.Answer, want) {
			t.Errorf("of %s it says %+v, %v, want the payment and %+v", route, got, err, want)
		}
	}
	if got, err := found("POST /v1/payments", []ledger.Made{{Merchant: "m1", Payment: made}, {Merchant: "m2", Payment: made}}); err != nil || !strings.HasSuffix(got.Says, ", of m1 and "+made.ID+": 0.05 USD from alice to bob, of m2") ||
		got.Hint == "" || !reflect.DeepEqual(got.Answer, idem.Response{}) {
		t.Errorf("of two payments it says %+v, %v, want both, and no answer", got, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := a.lookUp(t.Context(), "POST /v1/payments", "op"); err == nil || got.Nothing || err.Error() != "the ledger does not answer" {
		t.Errorf("without its database it says %+v, %v", got, err)
	}
}

// send returns the answer to a request, after redirects.
func send(t *testing.T, req *http.Request) (res *http.Response, body string) {
	t.Helper()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(text)
}

// A form of one instance may come back to another one, behind a proxy. Both need a key of their
// own for that. A key made of the operators' passwords would let each operator, and each reader of a
// saved page, try passwords without a request.
func TestFormsOfAnotherInstance(t *testing.T) {
	t.Parallel()
	key, other := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{1}, 32)), base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{2}, 32))
	for name, tt := range map[string]struct {
		here, there []string
		want        int // of a search without a result
	}{
		"the same operators and no key": {nil, nil, 403},
		"the same key":                  {[]string{"--console-token-key", key}, []string{"--console-token-key", key}, 404},
		"another key":                   {[]string{"--console-token-key", key}, []string{"--console-token-key", other}, 403},
	} {
		operators := []string{"--operators", "ada=secret,bob=word"}
		here, there := serve(t, append(tt.here, operators...)...), serve(t, append(tt.there, operators...)...)
		_, body := consoleAs(t, here.url, "", "ada", "secret")
		token := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(body)
		if token == nil {
			t.Fatalf("the console has no form:\n%s", body)
		}
		form := url.Values{"token": {token[1]}, "key": {strings.Repeat("0", 64)}}
		res, _ := ask(t, http.MethodPost, there.url+"/console/find", "ada", "secret", form)
		if res.StatusCode != tt.want {
			t.Errorf("%s: a form of another instance = %d, want %d", name, res.StatusCode, tt.want)
		}
	}
}

// Monitors and link checkers ask with HEAD, and get what GET would answer.
func TestPagesAnswerHEAD(t *testing.T) {
	t.Parallel()
	p := serve(t)
	for _, path := range []string{"/", "/openapi.json", "/healthz", "/readyz", "/metrics", "/console/", "/console/health"} {
		if res, body := ask(t, http.MethodHead, p.url+path, "ops", "ops", nil); res.StatusCode != 200 || body != "" {
			t.Errorf("HEAD %s = %d with %q, want 200 without a body", path, res.StatusCode, body)
		}
	}
}

// Without servers the console has an operator. With them it is off until somebody names one.
func TestConsoleByDefault(t *testing.T) {
	t.Parallel()
	if status, _ := consoleAs(t, serve(t).url, "", "ops", "ops"); status != 200 {
		t.Errorf("/console/ of a local instance: %d, want 200", status)
	}
	rebound := serve(t, "--demo")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, rebound.url+"/console/", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("ops", "ops")
	for host, want := range map[string]int{"evil.example": 403, "evil.example:8080": 403, "127.0.0.1.evil.example": 403, "localhost:8080": 200, "[::1]:8080": 200, "127.0.0.2": 200} {
		req.Host = host
		if res, _ := send(t, req); res.StatusCode != want {
			t.Errorf("/console/ of a local instance at %s: %d, want %d", host, res.StatusCode, want)
		}
	}
	p := serve(t, sharedFlags(t, "redis")...)
	if status, _ := consoleAs(t, p.url, "", "ops", "ops"); status != 404 {
		t.Errorf("/console/ of an instance with servers: %d, want 404", status)
	}
	c, err := parseConfig([]string{"--http-addr", "0.0.0.0:80"}, nil)
	if err != nil || len(c.Operators) != 0 {
		t.Errorf("an instance for other machines has the operators %v, %v, want none", c.Operators, err)
	}
}
