package main

import (
	"html"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// consoleAs asks for the console's first page.
func consoleAs(t *testing.T, url, name, password string) (status int, body string) {
	t.Helper()
	return consolePage(t, url, "", name, password)
}

// consolePage asks for a page of the console.
func consolePage(t *testing.T, url, path, name, password string) (status int, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/console/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if name != "" {
		req.SetBasicAuth(name, password)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

func TestConsoleIsForOperators(t *testing.T) {
	t.Parallel()
	p := serve(t, "--operators", "ada=secret")
	for _, tt := range []struct {
		name, password string
		want           int
	}{{"", "", 401}, {"ada", "wrong", 401}, {"ops", "ops", 401}, {"ada", "secret", 200}} {
		status, body := consoleAs(t, p.url, tt.name, tt.password)
		if status != tt.want || (status == 200) != strings.Contains(body, "Outcomes in doubt") {
			t.Errorf("/console/ as %q: %d, want %d:\n%s", tt.name, status, tt.want, body)
		}
	}
}

func TestConsoleTellsWhatItsInstanceSawOfAKey(t *testing.T) {
	t.Parallel()
	p := serve(t, "--operators", "ada=secret")
	if status, body, err := p.request("POST", "/v1/payments", "seen", orderBody); status != 201 || err != nil {
		t.Fatalf("a payment: %d %s, %v", status, body, err)
	}
	id := idem.NewKeyID("merchant_demo", "seen")
	if _, body := consolePage(t, p.url, "key/"+id.String(), "ada", "secret"); !strings.Contains(body, "Seen by this instance") {
		t.Errorf("the story of the key tells nothing that the instance saw:\n%s", body)
	}
}

// What the command on the page prints and what the form starts with are a normal answer, so that the
// operator adds the Location alone.
func TestOperatorEntersTheNormalAnswer(t *testing.T) {
	t.Parallel()
	p := serve(t, "--token-store", "memory", "--resolver", "none", "--operators", "ada=secret")
	const order = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"<a\"}],\"has_more\":1"}`
	pay := func(key, crash string) (res *http.Response, body string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/v1/payments", strings.NewReader(order))
		if err != nil {
			t.Fatal(err)
		}
		req.Header = http.Header{"Authorization": {"Bearer demo"}, "Idempotency-Key": {key}, "Demo-Crash": {crash}}
		return send(t, req)
	}
	normal, want := pay("normal", "")
	if lost, body := pay("lost", "1"); lost.StatusCode != http.StatusServiceUnavailable {
		t.Fatalf("a charge that fails in its middle: %d %s", lost.StatusCode, body)
	}
	id := idem.NewKeyID("merchant_demo", "lost")
	_, page := consolePage(t, p.url, "key/"+id.String(), "ada", "secret")
	if doubt := "answer does not tell whether it had an effect: unavailable"; !strings.Contains(page, doubt) {
		t.Errorf("want %q in\n%s", doubt, page)
	}
	part := func(pattern string) string {
		t.Helper()
		m := regexp.MustCompile(pattern).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("no %s in\n%s", pattern, page)
		}
		return html.UnescapeString(m[1])
	}
	lookUp := func(operation string) string {
		t.Helper()
		command := strings.NewReplacer("API_KEY_OF_THE_MERCHANT", "demo", id.OperationID(), operation).Replace(part(`aria-label="How to look it up"><code>([^<]+)`))
		out, err := exec.CommandContext(t.Context(), "sh", "-c", command).Output()
		if err != nil {
			t.Fatalf("%s: %v", command, err)
		}
		return string(out)
	}
	if got := lookUp(idem.NewKeyID("merchant_demo", "normal").OperationID()); got != want {
		t.Errorf("the command prints %q, want the first answer %q", got, want)
	}
	if got := lookUp(idem.NewKeyID("merchant_demo", "never").OperationID()); got != `{"payments":[],"has_more":false}` {
		t.Errorf("without a payment the command prints %q", got)
	}
	body := lookUp(id.OperationID())
	location := "/v1/payments/" + regexp.MustCompile(`pay_\w+`).FindString(body)
	form := url.Values{"token": {part(`name="token" value="([^"]+)"`)}, "attempt": {part(`name="attempt" value="([^"]+)"`)}, "outcome": {"applied"},
		"status": {part(`name="status"[^>]* value="([^"]+)"`)}, "content-type": {part(`name="content-type" value="([^"]+)"`)},
		"location": {location}, "body": {body}, "reason": {"found"}, "confirm": {part(`type <code>(\w+)</code>`)}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.url+"/console/key/"+id.String()+"/settle", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	req.SetBasicAuth("ada", "secret")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if res, answer := send(t, req); res.StatusCode != http.StatusOK || !strings.Contains(answer, ": it took effect.") {
		t.Fatalf("the settlement: %d\n%s", res.StatusCode, answer)
	}
	got, answer := pay("lost", "")
	if answer != body || got.StatusCode != normal.StatusCode || got.Header.Get("Content-Type") != normal.Header.Get("Content-Type") || got.Header.Get("Location") != location {
		t.Errorf("a repeat gets %d %v %s, want an answer such as %d %v %s", got.StatusCode, got.Header, answer, normal.StatusCode, normal.Header, want)
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

// A form of one instance may come back to another one, behind a proxy.
func TestFormsOfAnotherInstanceAreGood(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		operators string
		want      int // of a search without a result
	}{{"bob=word,ada=secret", 404}, {"ada=secret", 403}} {
		here, there := serve(t, "--operators", "ada=secret,bob=word"), serve(t, "--operators", tt.operators)
		_, body := consoleAs(t, here.url, "ada", "secret")
		token := regexp.MustCompile(`name="token" value="([^"]+)"`).FindStringSubmatch(body)
		if token == nil {
			t.Fatalf("the console has no form:\n%s", body)
		}
		form := url.Values{"token": {token[1]}, "key": {strings.Repeat("0", 64)}}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, there.url+"/console/find", strings.NewReader(form.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.SetBasicAuth("ada", "secret")
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != tt.want {
			t.Errorf("a form of another instance at one with %q: %d, want %d", tt.operators, res.StatusCode, tt.want)
		}
	}
}

// Without servers the console has an operator. With them it is off until somebody names one.
func TestConsoleByDefault(t *testing.T) {
	t.Parallel()
	if status, _ := consoleAs(t, serve(t).url, "ops", "ops"); status != 200 {
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
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("/console/ of a local instance at %s: %d, want %d", host, res.StatusCode, want)
		}
	}
	p := serve(t, sharedFlags(t, "redis")...)
	if status, _ := consoleAs(t, p.url, "ops", "ops"); status != 404 {
		t.Errorf("/console/ of an instance with servers: %d, want 404", status)
	}
	c, err := parseConfig([]string{"--http-addr", "0.0.0.0:80"}, nil)
	if err != nil || len(c.Operators) != 0 {
		t.Errorf("an instance for other machines has the operators %v, %v, want none", c.Operators, err)
	}
}
