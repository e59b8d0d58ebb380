package clients

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

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
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
	{"256 bytes", "Idempotency-Key: " + strings.Repeat("k", 256), false},
	{"32 KiB", "Idempotency-Key: " + strings.Repeat("k", 32<<10), false},
	{"1 MiB", "Idempotency-Key: " + strings.Repeat("k", 1<<20), true},
	{"two lines", "Idempotency-Key: a\r\nIdempotency-Key: b", false},
	{"two of one value", "Idempotency-Key: a\r\nIdempotency-Key: a", false},
	{"list", "Idempotency-Key: a, b", false},
	{"tab", "Idempotency-Key: a\tb", false},
	{"parameters", `Idempotency-Key: "a";x=1`, false},
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
	s := kit.NewSystem(t)
	in := s.Start("one")
	check := untouched(s, in)

	for _, k := range hostileKeys {
		status, contentType, body := rawRequest(t, in, "/v1/payments", k.header, goodBody)
		switch {
		case k.byServer && (status == 400 || status == 431):
		case status != 400 || contentType != "application/problem+json" || !strings.Contains(body, `"code":"key-`):
			t.Errorf("key %s = %d %s %.200q, want 400 and a problem with code key-…", k.name, status, contentType, body)
		}
	}
	for _, b := range hostileBodies {
		status, contentType, body := rawRequest(t, in, "/v1/payments", "Idempotency-Key: hostile", b.body)
		if status != 400 || contentType != "application/problem+json" || !strings.Contains(body, `"code":"body-invalid"`) {
			t.Errorf("body %s = %d %s %.200q, want 400 and a problem with code body-invalid", b.name, status, contentType, body)
		}
	}
	status, _, body := rawRequest(t, in, "/v1/payments", "Idempotency-Key: hostile", strings.Repeat(" ", 1<<20)+goodBody)
	if status != 413 || !strings.Contains(body, `"code":"body-too-large"`) {
		t.Errorf("body over the limit = %d %.200q, want 413 body-too-large", status, body)
	}

	check(t)
}

// untouched pays once and looks at what there is, and returns a check that what
// came then has left nothing behind.
func untouched(s *kit.System, in *kit.Instance) (check func(*testing.T)) {
	s.T.Helper()
	if a := in.HTTPClient().PayWithRetries("warm-up", 1, "warm-up"); !a.IsPayment() {
		s.T.Fatalf("first payment = %v", a)
	}
	conn := s.ZooKeeper()
	s.WaitLock(conn, "warm-up", false)
	before, running := keys(s), goroutines(s.T, in)
	return func(t *testing.T) {
		t.Helper()
		if after := keys(s); after != before {
			t.Errorf("Redis holds %q keys, want %q as before", after, before)
		}
		if locks := s.Locks(conn); len(locks) != 0 {
			t.Errorf("locks = %q, want none", locks)
		}
		kit.WantNoPayment(t, in.HTTPClient(), "hostile")
		kit.Eventually(t, "end of goroutines", func() error {
			if n := goroutines(t, in); n > running+2 {
				return fmt.Errorf("%d goroutines, %d before", n, running)
			}
			return nil
		})
	}
}

func TestStrangeKeysAreKeysLikeAnyOther(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in := s.Start("one")
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		c := in.Client(via)
		if via != kit.Transports[0] { // a key of this merchant stays with its transport
			c = c.As("test")
		}
		for i, key := range strangeKeys {
			note := kit.KeyFor(via, "strange-"+strconv.Itoa(i))
			first := c.PayWithRetries(key, kit.Amount, note)
			kit.WantPayment(t, "payment with "+key, first, kit.WantOnePayment(t, c, note))
			kit.WantReplay(t, "repeat with "+key, c.PayWithRetries(key, kit.Amount, note), first.Payment)
			kit.WantRefusal(t, "another request with "+key, c.Pay(key, kit.Amount, "other"), "key-reused")
		}
		// The quoted and the bare form are one key.
		key := kit.KeyFor(via, "a/b/c")
		first := c.PayWithRetries(key, kit.Amount, key)
		kit.WantReplay(t, "quoted form", c.Pay(`"`+key+`"`, kit.Amount, key), first.Payment)
	})
}

// raw sends a request byte by byte, since package http's client is too polite,
// and returns what came back.
func rawRequest(t testing.TB, in *kit.Instance, path, header, body string) (status int, contentType, text string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", in.Addr, kit.WaitLimit)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(kit.WaitLimit))
	var b bytes.Buffer
	fmt.Fprintf(&b, "POST %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer demo\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n%s\r\n\r\n%s",
		path, in.Addr, len(body), header, body)
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
func keys(s *kit.System) string {
	s.T.Helper()
	n, err := s.Redis.Do("DBSIZE")
	if err != nil || len(n) != 1 {
		s.T.Fatalf("DBSIZE = %q, %v", n, err)
	}
	return n[0]
}

// goroutines of the process, from its metrics.
func goroutines(t testing.TB, in *kit.Instance) int {
	t.Helper()
	return int(metric(t, in, "go_goroutines "))
}

// metric reads the value behind a metric's name and labels.
func metric(t testing.TB, in *kit.Instance, prefix string) float64 {
	t.Helper()
	a := in.HTTPClient().Request(t.Context(), http.MethodGet, "/metrics", "", nil)
	for line := range strings.Lines(a.Body) {
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
