package console_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/console"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
	"github.com/idemkeeper/idemkeeper/tokenstore/sealed"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testserver.M{M: m}) }

// backend makes an engine on a store.
type backend func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store)

// backends are the combinations that services use.
var backends = map[string]backend{
	"memory": func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		store := memorystore.New()
		return newEngine(t, memorylock.New(), store, opts...), store
	},
	"redis": func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		url := testserver.StartRedis(t).URL()
		store := openRedis(t, url)
		client, err := redisstore.Connect(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		locker, err := redislock.New(t.Context(), client)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = locker.Close(context.Background()) })
		return newEngine(t, locker, store, opts...), store
	},
	"zookeeper and sealed redis": func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		ring, err := sealed.ParseRing("k=MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
		if err != nil {
			t.Fatal(err)
		}
		store, err := sealed.New(openRedis(t, testserver.StartRedis(t).URL()), ring)
		if err != nil {
			t.Fatal(err)
		}
		client, err := zookeeper.Open(t.Context(), zookeeper.Config{Servers: testserver.SharedZooKeeper(t), Chroot: testserver.Chroot(t),
			SessionTimeout: 20 * time.Second, TickTime: 500 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		return newEngine(t, client.Locker(), store, opts...), store
	},
	"joined sqlite": func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		return joined(t, "sqlite:"+filepath.Join(t.TempDir(), "k.db"), []sqlstore.Option{sqlstore.WithSoleProcess()}, opts)
	},
	"joined postgres": func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		return onServer(t, testserver.SharedPostgres(t), opts)
	},
	"joined mariadb": func(t *testing.T, opts ...idem.Option) (*idem.Engine, driver.Store) {
		return onServer(t, testserver.SharedMariaDB(t)+"mysql", opts)
	},
}

var schemas atomic.Int64

// onServer makes a joined engine with a schema of its own on a shared server.
func onServer(t *testing.T, url string, opts []idem.Option) (*idem.Engine, driver.Store) {
	t.Helper()
	db, err := database.Open(url, database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	schema := fmt.Sprintf("console_%d_%d", os.Getpid(), schemas.Add(1))
	if _, err := db.Write.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	return joined(t, url, []sqlstore.Option{sqlstore.WithSchema(schema)}, opts)
}

func joined(t *testing.T, url string, storeOpts []sqlstore.Option, opts []idem.Option) (*idem.Engine, driver.Store) {
	t.Helper()
	db, err := database.Open(url, database.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect, storeOpts...); err != nil {
		t.Fatal(err)
	}
	store, err := sqlstore.New(t.Context(), db.Write, db.Dialect, append(append(db.StoreOptions(), sqlstore.WithExpiry(0)), storeOpts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	joined, err := store.Joined()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := idem.NewJoined(joined, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine, store
}

func openRedis(t *testing.T, url string) *redisstore.Store {
	t.Helper()
	client, err := redisstore.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	store, err := redisstore.New(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func newEngine(t *testing.T, l driver.Locker, s driver.Store, opts ...idem.Option) *idem.Engine {
	t.Helper()
	engine, err := idem.New(l, s, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

const route = "POST /v1/payments"

// rig is a service with a console.
type rig struct {
	*testing.T
	engine  *idem.Engine
	store   driver.Store
	console *console.Console
	policy  idem.Policy
	lookUp  func(ctx context.Context, route, op string) (console.Found, error)

	noLookUp bool // the console has none
	url      string
	log      *locked
}

// cannotTell is a look-up that leaves the looking to the operator.
func cannotTell(_ context.Context, route, op string) (console.Found, error) {
	return console.Found{Answer: idem.Response{Status: 202}, Hint: "an <ID> of " + route, More: "GET /v1/payments?operation_id=" + op + " # " + route}, nil
}

// locked is a log that tests read while a service writes it.
type locked struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *locked) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.buf.String() }

func newRig(t *testing.T, b backend) *rig {
	t.Helper()
	r := &rig{T: t, log: &locked{}, lookUp: cannotTell, policy: idem.Policy{AllowGlobalKeys: true, Name: route, InDoubt: idem.LeaveUnknown()}}
	r.engine, r.store = b(t, idem.WithObserver(func(ctx context.Context, ev telemetry.Event) {
		if r.console != nil {
			r.console.Observe(ctx, ev)
		}
	}))
	r.serve()
	return r
}

// serve makes the console, with the policy of the rig.
func (r *rig) serve() {
	r.Helper()
	cfg := console.Config{Service: "payments", ScopeHint: "the merchant, such as m", Idemctl: true, Challenge: `Basic realm="console"`,
		Policies: []idem.Policy{r.policy}, Logger: slog.New(slog.NewTextHandler(r.log, nil))}
	if !r.noLookUp {
		cfg.LookUp = func(ctx context.Context, route, op string) (console.Found, error) { return r.lookUp(ctx, route, op) }
	}
	var err error
	r.console, err = console.New(r.engine, authorise, cfg)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = r.console.Close(context.Background()) })
	mux := http.NewServeMux()
	mux.Handle("/ops/console/", http.StripPrefix("/ops/console", r.console))
	server := httptest.NewServer(mux)
	r.Cleanup(server.Close)
	r.url = server.URL + "/ops/console/"
}

// authorise knows three operators.
func authorise(r *http.Request) (console.Operator, error) {
	name, password, _ := r.BasicAuth()
	if password != "secret" {
		return console.Operator{}, console.ErrUnauthorised
	}
	switch name {
	case "ada":
		return console.Operator{Name: name, MaySettle: true, MaySeeResponses: true}, nil
	case "bob":
		return console.Operator{Name: name, MaySettle: true}, nil
	case "reader":
		return console.Operator{Name: name}, nil
	}
	return console.Operator{}, errors.New("no operator")
}

// as is a browser of an operator.
func (r *rig) as(name string) *browser {
	r.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.Fatal(err)
	}
	return &browser{rig: r, name: name, client: &http.Client{Jar: jar, Transport: &http.Transport{DisableKeepAlives: true}}}
}

type browser struct {
	*rig
	name   string
	client *http.Client
}

// answer is what a browser got, after redirects.
type answer struct {
	status int
	header http.Header
	path   string // of the last page, below the console
	body   string
}

func (b *browser) do(method, path string, form url.Values, header ...string) answer {
	b.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(b.Context(), method, b.url+path, body)
	if err != nil {
		b.Fatal(err)
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	if b.name != "" {
		req.SetBasicAuth(b.name, "secret")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := b.client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, strings.TrimPrefix(res.Request.URL.String(), b.url), string(text)}
}

func (b *browser) get(path string) answer { b.Helper(); return b.do("GET", path, nil) }

var hidden = regexp.MustCompile(`<input type="hidden" name="(\w+)" value="([^"]*)"`)

// form reads the hidden fields of a page's last form with a token.
func (a answer) form() url.Values {
	v := url.Values{}
	for _, m := range hidden.FindAllStringSubmatch(a.body, -1) {
		v.Set(m[1], strings.ReplaceAll(strings.ReplaceAll(m[2], "&#43;", "+"), "&#39;", "'"))
	}
	return v
}

// want checks status and parts of an answer. A part that begins with ! must be missing.
func (a answer) want(t *testing.T, status int, parts ...string) {
	t.Helper()
	if a.status != status {
		t.Errorf("status %d, want %d", a.status, status)
	}
	for _, part := range parts {
		if missing, no := strings.CutPrefix(part, "!"); no == strings.Contains(a.body, missing) {
			t.Errorf("want %q in\n%s", part, a.body)
		}
	}
}

func id(key idem.Key) driver.KeyID { return idem.NewKeyID("m", key) }

func (r *rig) operation(key idem.Key) idem.Operation {
	p := r.policy
	return idem.Operation{Transport: idem.TransportHTTP, Scope: "m", Key: key, Policy: &p, Fingerprint: idem.FingerprintOf("pay", "1")}
}

// inDoubt leaves an unknown outcome of a key. In joined mode an outcome is in doubt only after
// rare faults, so there the store makes the record.
func (r *rig) inDoubt(key idem.Key, resp *idem.Response) driver.Attempt {
	r.Helper()
	if domain, err := r.engine.DomainOf(r.Context(), id(key)); err != nil {
		r.Fatal(err)
	} else if domain != driver.JoinedDomain {
		return r.lost(key, resp)
	}
	begun := r.begin(key, driver.JoinedFence(1))
	s := driver.Settlement{Attempt: begun, ID: driver.NewNonce(), State: driver.StateUnknown, Response: (*driver.Response)(resp), KeyTTL: time.Hour}
	if got, err := r.store.Settle(r.Context(), id(key), s); err != nil || !got.Settled {
		r.Fatalf("Settle() = %+v, %v", got, err)
	}
	return begun
}

// lost runs an operation whose outcome is lost.
func (r *rig) lost(key idem.Key, resp *idem.Response) driver.Attempt {
	r.Helper()
	op := r.operation(key)
	handler := func(context.Context) (idem.Response, error) { return idem.Response{}, errors.New("lost") }
	if resp != nil {
		handler = func(context.Context) (idem.Response, error) { return *resp, nil }
	}
	_, _ = r.engine.Do(r.Context(), op, handler)
	rec := r.record(key)
	if rec.State != driver.StateUnknown {
		r.Fatalf("the record is %v, want unknown", rec.State)
	}
	return rec.Attempt
}

// begin begins an attempt that nobody settles.
func (r *rig) begin(key idem.Key, fence driver.Fence) driver.Attempt {
	r.Helper()
	fp, err := r.operation(key).Fingerprint(idem.FingerprintVersion)
	if err != nil {
		r.Fatal(err)
	}
	res, err := r.store.Begin(r.Context(), id(key), driver.BeginRequest{Route: route, Fence: fence, Nonce: driver.NewNonce(), Fingerprint: fp, KeyTTL: time.Hour})
	if err != nil || !res.Begun {
		r.Fatalf("Begin() = %+v, %v", res, err)
	}
	return res.Record.Attempt
}

// beginAgain begins the attempt after a released one.
func (r *rig) beginAgain(key idem.Key) driver.Attempt {
	r.Helper()
	fence := r.record(key).Attempt.Fence
	fence.Token++
	return r.begin(key, fence)
}

func (r *rig) record(key idem.Key) driver.Record {
	r.Helper()
	rec, err := r.store.Get(r.Context(), id(key))
	if err != nil {
		r.Fatal(err)
	}
	return rec
}

func (b *browser) storyOf(key idem.Key) answer { b.Helper(); return b.get("key/" + id(key).String()) }

// confirmation is what an operator types for an outcome after nothing was found.
func confirmation(key idem.Key, outcome string) string {
	op := id(key).OperationID()
	return map[string]string{"applied": "done ", "not-applied": "again "}[outcome] + op[len(op)-6:]
}

// confirmation is what the page asks for, with the end of this key's operation.
func (a answer) confirmation(key idem.Key, outcome string) string {
	m := regexp.MustCompile(`id="` + regexp.QuoteMeta(outcome) + `-confirm"[^>]* title="(\w+ )?\w+"`).FindStringSubmatch(a.body)
	if m == nil {
		return confirmation(key, outcome)
	}
	return m[1] + confirmation(key, "")
}

// settle sends the form of a page, with fields changed.
func (b *browser) settle(key idem.Key, page answer, fields ...string) answer {
	b.Helper()
	v := page.form()
	v.Del("outcome")
	v.Set("reason", "found in the ledger, ticket 4711")
	for i := 0; i+1 < len(fields); i += 2 {
		v.Set(fields[i], fields[i+1])
	}
	if !v.Has("confirm") {
		v.Set("confirm", page.confirmation(key, v.Get("outcome")))
	}
	return b.do("POST", "key/"+id(key).String()+"/settle", v)
}
