package clients

import (
	"cmp"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// secrets are what clients have sent or were given and what nobody else may
// see, by what they are.
type secrets struct {
	clientKeys, tokens, bearers, notes []string
}

// secret makes a text that is found nowhere by chance, and that looks different
// in each encoding. It is a key, a bearer token and a note alike.
func secret() string { return "s+/" + rand.Text() + "~_z" }

func (s *secrets) key() string    { return keepIn(&s.clientKeys, secret()) }
func (s *secrets) bearer() string { return keepIn(&s.bearers, secret()) }
func (s *secrets) note() string   { return keepIn(&s.notes, secret()) }

func keepIn(list *[]string, text string) string {
	*list = append(*list, text)
	return text
}

// formsOf are the ways in which a secret may be written down.
func formsOf(secret string) map[string]string {
	b := []byte(secret)
	forms := map[string]string{
		"raw": secret, "its first half": secret[:len(secret)/2], "quoted": strings.Trim(strconv.Quote(secret), `"`),
		"query": url.QueryEscape(secret), "path": url.PathEscape(secret),
		"hex": hex.EncodeToString(b), "bytes": strings.Trim(fmt.Sprintf("%d", b), "[]"),
	}
	for shift := range 3 { // where it stands in what was encoded
		text := append(make([]byte, shift), b...)
		from, to := (shift*8+5)/6, len(text)*8/6
		forms[fmt.Sprint("base64, shifted by ", shift)] = base64.StdEncoding.EncodeToString(text)[from:to]
		forms[fmt.Sprint("base64 for URLs, shifted by ", shift)] = base64.URLEncoding.EncodeToString(text)[from:to]
	}
	return forms
}

// leaks says which of the secrets a text holds, in whatever form and case.
func leaks(text string, lists ...[]string) []string {
	lower := strings.ToLower(text)
	var found []string
	for _, list := range lists {
		for _, secret := range list {
			for name, form := range formsOf(secret) {
				if i := strings.Index(lower, strings.ToLower(form)); i >= 0 {
					found = append(found, fmt.Sprintf("%s (%s) in %q", secret, name, text[max(0, min(i, len(text))-80):min(len(text), i+len(form)+20)]))
				}
			}
		}
	}
	return found
}

func TestLeaksAreNoticed(t *testing.T) {
	t.Parallel()
	s := secret()
	for name, form := range formsOf(s) {
		for _, text := range []string{form, "before " + form + " behind", strings.ToUpper(form)} {
			if len(leaks(text, []string{"another secret"}, []string{s})) == 0 {
				t.Errorf("%s: not noticed in %q", name, text)
			}
		}
	}
	for range 6 { // whatever it is embedded in
		whole := rand.Text()[:len(s)%6] + s + rand.Text()
		if len(leaks(base64.StdEncoding.EncodeToString([]byte(whole)), []string{s})) == 0 {
			t.Errorf("not noticed in the base64 of %q", whole)
		}
	}
	if found := leaks(secret(), []string{s}); len(found) > 0 {
		t.Errorf("another secret is taken for it: %q", found)
	}
}

// watched is a system whose clients' secrets are known.
type watched struct {
	*kit.System
	secrets
	mine, theirs string // bearer tokens
}

// clean fails the test where a place shows a secret that it must not.
func (w *watched) clean(place, text string, notesToo bool) {
	w.T.Helper()
	lists := [][]string{w.clientKeys, w.tokens, w.bearers}
	if notesToo {
		lists = append(lists, w.notes)
	}
	for _, leak := range leaks(text, lists...) {
		w.T.Errorf("%s: %s", place, leak)
	}
}

// shows is the proof that a place was looked at.
func (w *watched) shows(place, text, what string) {
	w.T.Helper()
	if !strings.Contains(text, what) {
		w.T.Errorf("%s does not show %q: the look is broken: %.200q", place, what, text)
	}
}

// whole is all that an answer consists of.
func whole(a kit.Answer) string {
	return fmt.Sprint(a.Wire, a.Body, a.Header, a.MetaHeader, a.MetaTrailer, a.RPC)
}

// paid wants a payment, whose answer shows its note and nothing else.
func (w *watched) paid(what string, a kit.Answer) {
	w.T.Helper()
	if !a.IsPayment() {
		w.T.Fatalf("%s = %v, want it made", what, a)
	}
	w.clean("answer to "+what, whole(a), false)
}

// refused wants a refusal, which shows nothing.
func (w *watched) refused(what string, a kit.Answer, code string) {
	w.T.Helper()
	kit.WantRefusal(w.T, what, a, code)
	w.clean("answer to "+what, whole(a), true)
}

// use makes whatever clients do at an instance, good and bad.
func (w *watched) use(in *kit.Instance, via kit.Transport) {
	w.T.Helper()
	mine := in.Client(via).As(w.mine)
	theirs := mine.As(w.theirs)
	key, note := w.key(), w.note()
	w.paid("a payment", mine.PayWithRetries(key, kit.Amount, note))
	w.paid("a repeat", mine.PayWithRetries(key, kit.Amount, note))
	w.refused("another request", mine.Pay(key, kit.Amount, w.note()), "key-reused")
	w.paid("another merchant's payment", theirs.PayWithRetries(key, kit.Amount, w.note()))
	w.refused("another merchant's other request", theirs.Pay(key, kit.Amount, note), "key-reused")
	w.refused("one without a known API key", mine.As(w.bearer()).Pay(key, kit.Amount, note), "unauthorized")
	w.refused("a list of keys", mine.Send(w.T.Context(), kit.ToPayments, kit.FromAlice(kit.Amount, w.note()), w.key()+", "+w.key()), "key-invalid")
	w.refused("two keys", mine.Send(w.T.Context(), kit.ToPayments, kit.FromAlice(kit.Amount, w.note()), w.key(), w.key()), "key-invalid")
	w.refused("a bad body", mine.Pay(w.key(), -1, w.note()), "body-invalid")
	nobody := kit.Order{From: "alice", To: w.note(), Amount: kit.Amount, Currency: "USD", Note: w.note()}
	unknown := kit.WithRetries(func() kit.Answer { return mine.Send(w.T.Context(), kit.ToPayments, nobody, key+"2") })
	kit.WantRefusal(w.T, "an unknown account", unknown, "account-unknown")
	w.clean("answer to an unknown account", whole(unknown), false) // it names the account
	w.refused("a client key as token", mine.Trade(key, kit.Amount, note), "token-unknown")
	w.refused("a junk token", mine.Trade(w.key(), kit.Amount, w.note()), "token-unknown")

	token := keepIn(&w.tokens, mine.IssueToken(w.T))
	w.refused("another merchant's token", theirs.Trade(token, kit.Amount, w.note()), "token-unknown")
	w.refused("a token as client key", mine.Pay(token, kit.Amount, w.note()), "key-reused")
	w.paid("a trade", mine.TradeWithRetries(token, kit.Amount, note))
	w.paid("a repeated trade", mine.TradeWithRetries(token, kit.Amount, note))
	keepIn(&w.tokens, mine.IssueToken(w.T)) // and never used

	if _, err := mine.ListPayments(w.note()); err != nil {
		w.T.Fatal(err)
	}
	if state, err := mine.KeyState(key); err != nil || state == "" {
		w.T.Fatalf("state = %q, %v, want one", state, err)
	}
	for _, where := range []string{"/", "/v1/payments/", "/v1/accounts/", "/v1/idempotency?key=", "/metrics?x="} {
		a := mine.Request(w.T.Context(), http.MethodGet, where+url.QueryEscape(w.key()), "", nil)
		if a.Err != nil {
			w.T.Fatal(a.Err)
		}
	}
}

// redisContent is every key with its value.
func (w *watched) redisContent() string {
	w.T.Helper()
	var all strings.Builder
	do := func(args ...string) []string {
		w.T.Helper()
		v, err := w.Redis.Do(args...)
		if err != nil {
			w.T.Fatalf("%q = %v", args, err)
		}
		return v
	}
	for cursor := ""; cursor != "0"; {
		page := do("SCAN", cmp.Or(cursor, "0"), "COUNT", "1000")
		cursor = page[0]
		for _, key := range page[1:] {
			values := do("DUMP", key)
			switch do("TYPE", key)[0] { // DUMP compresses
			case "string":
				values = append(values, do("GET", key)...)
			case "zset":
				values = append(values, do("ZRANGE", key, "0", "-1")...)
			case "hash":
				values = append(values, do("HGETALL", key)...)
			case "set":
				values = append(values, do("SMEMBERS", key)...)
			}
			fmt.Fprintln(&all, key, strings.Join(values, "\n"))
		}
	}
	return all.String()
}

// znodes is every path below the chroot with its data.
func (w *watched) znodes(conn *zk.Conn) string {
	w.T.Helper()
	var all strings.Builder
	var walk func(at string)
	walk = func(at string) {
		data, _, err := conn.Get(at)
		if errors.Is(err, zk.ErrNoNode) {
			return // it has just gone
		}
		if err != nil {
			w.T.Fatalf("Get(%q) = %v", at, err)
		}
		fmt.Fprintf(&all, "%s %s\n", at, data)
		for _, child := range w.Children(conn, at) {
			walk(path.Join(at, child))
		}
	}
	walk(w.Chroot)
	return all.String()
}

// ctl runs idemctl and returns all that it prints.
func (w *watched) ctl(args ...string) string {
	w.T.Helper()
	got := w.RunIdemctl(args...)
	return got.Stdout + got.Stderr
}

// decided has idemctl decide, retire and look around, about a key that waits.
func (w *watched) decided(key string) {
	w.T.Helper()
	for _, format := range []string{"--json=false", "--json"} {
		look := w.ctl(format, "doctor")
		w.shows("idemctl doctor", look, "open-records")
		w.clean("idemctl doctor", look, true)
		retired := w.ctl(format, "store", "retire", "a-domain-of-the-past")
		w.shows("idemctl store retire", retired, "a-domain-of-the-past")
		w.clean("idemctl store retire", retired, true)
		for _, key := range []string{key, w.key(), w.key() + ", " + w.key()} {
			for _, args := range [][]string{{"--not-applied", "--attempt", "7"}, {"--applied", "no-such-file"}, {"--applied", kit.AnswerFile(w.T, map[string]any{"status": 0})}} {
				w.clean("idemctl record resolve", w.ctl(append(append([]string{format, "record", "resolve", "--scope", "merchant_demo"}, args...), "--", key)...), true)
			}
		}
	}
	with := kit.AnswerFile(w.T, map[string]any{"status": 201, "body": w.note()})
	resolved := w.ctl("record", "resolve", "--scope", "merchant_demo", "--applied", with, "--attempt", "1", "--", key)
	w.shows("idemctl record resolve", resolved, kit.KeyID(key).String())
	w.shows("idemctl record resolve", resolved, "completed")
	w.clean("idemctl record resolve", resolved, true)
	again := w.ctl("record", "resolve", "--scope", "merchant_demo", "--not-applied", "--", key)
	w.shows("a second idemctl record resolve", again, "completed by")
	w.clean("a second idemctl record resolve", again, true)
	shown := w.ctl("record", "show", "--scope", "merchant_demo", "--", key)
	w.shows("idemctl record show of decisions", shown, "decision ")
	w.clean("idemctl record show of decisions", shown, true)
}

// Whatever clients do, raw keys and tokens are in no log, metric, znode, answer,
// line of idemctl nor in Redis; what they have sent and were answered is in
// Redis alone, and shown by idemctl to who asks for bodies.
func TestNothingSecretComesOut(t *testing.T) {
	t.Parallel()
	w := &watched{System: kit.NewSystem(t)}
	w.mine, w.theirs = w.bearer(), w.bearer()
	with := kit.WithFlags("--resolver", "none", "--api-keys", w.mine+"=merchant_demo,"+w.theirs+"=merchant_test")
	in, victim := w.Start("one", with), w.Start("the victim", with, kit.WithLatency(2*kit.WaitLimit))
	for _, via := range kit.Transports {
		w.use(in, via)
	}
	first := w.clientKeys[0]

	// Interrupted, with its lock still there.
	conn := w.ZooKeeper()
	var interrupted [][2]string
	for _, via := range kit.Transports {
		key, note := w.key(), w.note()
		interrupted = append(interrupted, [2]string{key, note})
		victim.Client(via).As(w.mine).StartPay(key, kit.Amount, note)
		victim.WaitLog(t, "at=before-ledger", kit.LogOp(key))
	}
	held := w.znodes(conn)
	w.shows("ZooKeeper", held, kit.LockNode(interrupted[0][0]))
	w.clean("ZooKeeper while locks are held", held, true)
	w.clean("idemctl record list of running ones", w.ctl("record", "list"), true)
	w.clean("metrics of the victim", victim.HTTPClient().Request(t.Context(), http.MethodGet, "/metrics", "", nil).Body, true)
	victim.Kill(t)
	for i, via := range kit.Transports {
		key, note := interrupted[i][0], interrupted[i][1]
		w.refused("one that was interrupted", in.Client(via).As(w.mine).PayWithRetries(key, kit.Amount, note), "outcome-unknown")
	}

	metrics := in.HTTPClient().Request(t.Context(), http.MethodGet, "/metrics", "", nil)
	w.shows("metrics", metrics.Body, "idemkeeper_request_duration_seconds_count")
	w.clean("metrics", whole(metrics), true)

	for _, format := range []string{"--json=false", "--json"} {
		list := w.ctl(format, "record", "list")
		w.shows("idemctl record list", list, kit.KeyID(interrupted[0][0]).String())
		w.clean("idemctl record list", list, true)
		for _, key := range append([]string{first, interrupted[0][0], w.key(), w.key() + ", " + w.key()}, w.tokens...) {
			w.clean("idemctl record show", w.ctl(format, "record", "show", "--scope", "merchant_demo", "--", key), true)
		}
		w.shows("idemctl record show", w.ctl(format, "record", "show", "--scope", "merchant_demo", "--", first), kit.KeyID(first).String())
		if body := w.ctl(format, "record", "show", "--body", "--scope", "merchant_demo", "--", first); len(leaks(body, w.notes[:1])) == 0 {
			t.Errorf("idemctl record show --body = %q, want the body", body)
		}
	}

	w.decided(interrupted[0][0])

	content := w.redisContent()
	w.shows("Redis", content, kit.KeyID(first).String())
	w.clean("Redis", content, false)
	if len(leaks(content, w.notes[:1])) == 0 {
		t.Error("Redis does not show the answer to the first payment: the look is broken")
	}
	w.clean("ZooKeeper", w.znodes(conn), true)

	// What is planted is found.
	if _, err := w.Redis.Do("ZADD", "planted", "1", "x"+hex.EncodeToString([]byte(w.tokens[0]))); err != nil {
		t.Fatal(err)
	}
	if len(leaks(w.redisContent(), w.tokens[:1])) == 0 {
		t.Error("a token that was planted in Redis is not found")
	}
	if _, err := conn.Create(w.Chroot+"/lock/planted", []byte(base64.StdEncoding.EncodeToString([]byte("key="+first))), 0, zk.WorldACL(zk.PermAll)); err != nil {
		t.Fatal(err)
	}
	if len(leaks(w.znodes(conn), []string{first})) == 0 {
		t.Error("a key that was planted in ZooKeeper is not found")
	}

	// Errors of Redis come into the logs, too.
	w.Redis.Kill()
	for _, via := range kit.Transports {
		w.refused("one without Redis", in.Client(via).As(w.mine).Pay(w.key(), kit.Amount, w.note()), "unavailable")
	}
	w.clean("idemctl without Redis", w.ctl("record", "show", "--scope", "merchant_demo", "--", first), true)
	in.Terminate(t)
	for _, in := range []*kit.Instance{in, victim} {
		log := in.Stdout.Tail(1<<30) + in.Stderr.Tail(1<<30)
		w.shows("log of "+in.Name, log, "level=DEBUG")
		w.clean("log of "+in.Name, log, true)
		if len(leaks(log+first, []string{first})) == 0 {
			t.Errorf("a key that was planted in the log of %s is not found", in.Name)
		}
	}
}
