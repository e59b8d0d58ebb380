package tests

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

const goodBody = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"hostile"}`

// hostileKeys are keys, as they are on HTTP's wire. Package http itself refuses
// some of them before any handler could. Their gRPC twins are in
// hostile_grpc_test.go.
var hostileKeys = []struct {
	name, header string // header lines
	byServer     bool   // refused by package http: no problem+json
}{
	{"empty", "Idempotency-Key: ", false},
	{"empty quotes", `Idempotency-Key: ""`, false},
	{"256 bytes", "Idempotency-Key: " + strings.Repeat("k", 256), false},
	{"32 KiB", "Idempotency-Key: " + strings.Repeat("k", 32<<10), false},
	{"1 MiB", "Idempotency-Key: " + strings.Repeat("k", 1<<20), true},
	{"two lines", "Idempotency-Key: a\r\nIdempotency-Key: b", false},
	{"two of one value", "Idempotency-Key: a\r\nIdempotency-Key: a", false},
	{"list", "Idempotency-Key: a, b", false},
	{"space", "Idempotency-Key: a b", false},
	{"tab", "Idempotency-Key: a\tb", false},
	{"open quote", `Idempotency-Key: "a`, false},
	{"text behind quotes", `Idempotency-Key: "a"b`, false},
	{"parameters", `Idempotency-Key: "a";x=1`, false},
	{"bad escape", `Idempotency-Key: "a\n"`, false},
	{"quote inside", `Idempotency-Key: a"b`, false},
	{"backslash", `Idempotency-Key: a\b`, false},
	{"UTF-8", "Idempotency-Key: schlüssel", false},
	{"invalid UTF-8", "Idempotency-Key: a\xff\xfeb", false},
	{"high bytes in quotes", "Idempotency-Key: \"a\x80\"", false},
	{"NUL", "Idempotency-Key: a\x00b", true},
	{"DEL", "Idempotency-Key: a\x7fb", true},
	{"escape character", "Idempotency-Key: a\x1bb", true},
}

var hostileBodies = []struct{ name, body string }{
	{"empty", ""},
	{"no JSON", "hello"},
	{"binary", "\x00\x01\x02\xff"},
	{"two values", goodBody + goodBody},
	{"array", "[" + goodBody + "]"},
	{"null", "null"},
	{"duplicate member", `{"from":"alice","to":"bob","amount":1,"amount":1250,"currency":"USD","note":"hostile"}`},
	{"duplicate member, escaped", `{"from":"alice","to":"bob","amount":1,"\u0061mount":1250,"currency":"USD","note":"hostile"}`},
	{"other case", `{"From":"alice","to":"bob","amount":1250,"currency":"USD","note":"hostile"}`},
	{"unknown member", `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"hostile","fee":1}`},
	{"missing member", `{"from":"alice","amount":1250,"currency":"USD","note":"hostile"}`},
	{"huge number", `{"from":"alice","to":"bob","amount":` + strings.Repeat("9", 400) + `,"currency":"USD","note":"hostile"}`},
	{"huge exponent", `{"from":"alice","to":"bob","amount":1e999999999,"currency":"USD","note":"hostile"}`},
	{"above 2^63", `{"from":"alice","to":"bob","amount":9223372036854775808,"currency":"USD","note":"hostile"}`},
	{"fraction", `{"from":"alice","to":"bob","amount":1250.5,"currency":"USD","note":"hostile"}`},
	{"negative", `{"from":"alice","to":"bob","amount":-1250,"currency":"USD","note":"hostile"}`},
	{"zero", `{"from":"alice","to":"bob","amount":0,"currency":"USD","note":"hostile"}`},
	{"number in a string", `{"from":"alice","to":"bob","amount":"1250","currency":"USD","note":"hostile"}`},
	{"to oneself", `{"from":"alice","to":"alice","amount":1250,"currency":"USD","note":"hostile"}`},
	{"invalid UTF-8", "{\"from\":\"alice\",\"to\":\"bob\",\"amount\":1250,\"currency\":\"USD\",\"note\":\"\xff\"}"},
	{"half a surrogate pair", `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"\ud800"}`},
	{"NUL in a note", `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"\u0000"}`},
	{"deep nesting", `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`},
	{"deeper nesting", strings.Repeat(`{"a":`, 100_000)},
	{"long account", `{"from":"` + strings.Repeat("a", 1000) + `","to":"bob","amount":1250,"currency":"USD","note":"hostile"}`},
}

// strangeKeys are odd, and valid: each is one key like any other.
var strangeKeys = []string{"../../etc/passwd", "/", "//", ".", "..", "%2e%2e%2f", "a/b/c", "{0}", "*", `"'; DROP TABLE payments; --"`, "';DROP-TABLE-payments;--",
	"idem:{00}:open", `"with spaces"`, `"\"quoted\""`, `"back\\slash"`, "zookeeper", strings.Repeat("k", 255)}

func TestHostileRequestsAreRefusedAndLeaveNothing(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one")
	check := s.untouched(in)

	for _, k := range hostileKeys {
		status, contentType, body := in.raw(t, "/v1/payments", k.header, goodBody)
		switch {
		case k.byServer && (status == 400 || status == 431):
		case status != 400 || contentType != "application/problem+json" || !strings.Contains(body, `"code":"key-`):
			t.Errorf("key %s = %d %s %.200q, want 400 and a problem with code key-…", k.name, status, contentType, body)
		}
	}
	for _, b := range hostileBodies {
		status, contentType, body := in.raw(t, "/v1/payments", "Idempotency-Key: hostile", b.body)
		if status != 400 || contentType != "application/problem+json" || !strings.Contains(body, `"code":"body-invalid"`) {
			t.Errorf("body %s = %d %s %.200q, want 400 and a problem with code body-invalid", b.name, status, contentType, body)
		}
	}
	status, _, body := in.raw(t, "/v1/payments", "Idempotency-Key: hostile", strings.Repeat(" ", 1<<20)+goodBody)
	if status != 413 || !strings.Contains(body, `"code":"body-too-large"`) {
		t.Errorf("body over the limit = %d %.200q, want 413 body-too-large", status, body)
	}

	check(t)
}

// untouched pays once and looks at what there is, and returns a check that what
// came then has left nothing behind.
func (s *system) untouched(in *instance) (check func(*testing.T)) {
	s.t.Helper()
	if a := in.httpClient().payWithRetries("warm-up", 1, "warm-up"); !a.isPayment() {
		s.t.Fatalf("first payment = %v", a)
	}
	conn := s.zooKeeper()
	s.waitLock(conn, "warm-up", false)
	before, goroutines := s.keys(), in.goroutines(s.t)
	return func(t *testing.T) {
		t.Helper()
		if after := s.keys(); after != before {
			t.Errorf("Redis holds %q keys, want %q as before", after, before)
		}
		if locks := s.locks(conn); len(locks) != 0 {
			t.Errorf("locks = %q, want none", locks)
		}
		wantNoPayment(t, in.httpClient(), "hostile")
		eventually(t, "end of goroutines", func() error {
			if n := in.goroutines(t); n > goroutines+2 {
				return fmt.Errorf("%d goroutines, %d before", n, goroutines)
			}
			return nil
		})
	}
}

func TestStrangeKeysAreKeysLikeAnyOther(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one")
	forEachTransport(t, func(t *testing.T, via transport) {
		c := in.client(via)
		if via != transports[0] { // a key of this merchant stays with its transport
			c = c.as("test")
		}
		for i, key := range strangeKeys {
			note := keyFor(via, "strange-"+strconv.Itoa(i))
			first := c.payWithRetries(key, amount, note)
			wantPayment(t, "payment with "+key, first, wantOnePayment(t, c, note))
			wantReplay(t, "repeat with "+key, c.payWithRetries(key, amount, note), first.payment)
			wantRefusal(t, "another request with "+key, c.pay(key, amount, "other"), "key-reused")
		}
		// The quoted and the bare form are one key.
		key := keyFor(via, "a/b/c")
		first := c.payWithRetries(key, amount, key)
		wantReplay(t, "quoted form", c.pay(`"`+key+`"`, amount, key), first.payment)
	})
}

// raw sends a request byte by byte, since package http's client is too polite,
// and returns what came back.
func (in *instance) raw(t testing.TB, path, header, body string) (status int, contentType, text string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", in.addr, waitLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(waitLimit))
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer demo\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n\r\n%s",
		path, in.addr, len(body), header, body)
	go func() { _, _ = conn.Write(b.Bytes()) }() // the server may answer before it has read all
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Errorf("request with %.80q and %.80q: %v", header, body, err)
		return 0, "", ""
	}
	defer resp.Body.Close()
	content, _ := io.ReadAll(resp.Body) // the connection may be reset behind an early answer
	return resp.StatusCode, resp.Header.Get("Content-Type"), string(content)
}

// keys counts what Redis holds.
func (s *system) keys() string {
	s.t.Helper()
	n, err := s.redis.Do("DBSIZE")
	if err != nil || len(n) != 1 {
		s.t.Fatalf("DBSIZE = %q, %v", n, err)
	}
	return n[0]
}

// goroutines of the process, from its metrics.
func (in *instance) goroutines(t testing.TB) int {
	t.Helper()
	return int(in.metric(t, "go_goroutines "))
}

// metric reads the value behind a metric's name and labels.
func (in *instance) metric(t testing.TB, prefix string) float64 {
	t.Helper()
	a := in.httpClient().request(t.Context(), http.MethodGet, "/metrics", "", nil)
	for line := range strings.Lines(a.body) {
		if v, ok := strings.CutPrefix(line, prefix); ok {
			f, err := strconv.ParseFloat(strings.TrimSpace(v), 64)
			if err != nil {
				t.Fatalf("metric %q: %v", line, err)
			}
			return f
		}
	}
	t.Fatalf("no metric %q in %v", prefix, a)
	return 0
}
