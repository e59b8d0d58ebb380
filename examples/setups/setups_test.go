package setups

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestMain(m *testing.M) { os.Exit(testserver.M{M: m}.Run()) }

// prepared is the URL of a database with the tables of Idemkeeper, and those of locks.
func prepared(t *testing.T) string {
	t.Helper()
	url := testserver.StartPostgres(t).URL()
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := sqlstore.Migrate(t.Context(), db, dialect.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE payments (merchant text, amount bigint)"); err != nil {
		t.Fatal(err)
	}
	return url
}

// Each program pays once per key, answers the repeat with the first answer, and says at its start what the route gets.
func TestPrograms(t *testing.T) {
	t.Parallel()
	database := func(t *testing.T) []string { return []string{"DATABASE_URL=" + prepared(t)} }
	redis := func(t *testing.T) []string { return []string{"REDIS_URL=redis://" + testserver.StartRedis(t).Addr()} }
	for name, tt := range map[string]struct {
		env  func(*testing.T) []string
		gets string
	}{
		"joined":    {database, "exactly once in the transaction through every hazard"},
		"joinedpgx": {database, "exactly once in the transaction through every hazard"},
		"redis":     {redis, "anywhere else through repeats, an outage, a crash"},
		"rows": {func(t *testing.T) []string { return append(database(t), "BANK_URL="+startBank(t, false).URL) },
			"anywhere else through repeats, an outage, a crash"},
		"zookeeper": {func(t *testing.T) []string { return append(redis(t), "ZOOKEEPER="+testserver.StartZooKeeper(t).Addr()) },
			"at a resource that checks the fence through every hazard"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, said := start(t, name, tt.env(t))
			for _, replayed := range []string{"", "true"} {
				resp, body := pay(t, client)
				if resp.StatusCode != http.StatusCreated || resp.Header.Get("Idempotent-Replayed") != replayed {
					t.Errorf("the service answers %d %s, replayed %q, want 201, %q", resp.StatusCode, body, resp.Header.Get("Idempotent-Replayed"), replayed)
				}
			}
			if log := said(); !strings.Contains(log, tt.gets) {
				t.Errorf("the service does not say %q:\n%s", tt.gets, log)
			}
		})
	}
}

// The bank charges, and its answer is lost. The resolver finds the charge, so the client gets its answer at once.
func TestRowsLookUpWhatTheBankDid(t *testing.T) {
	t.Parallel()
	bank := startBank(t, true)
	client, said := start(t, "rows", []string{"DATABASE_URL=" + prepared(t), "BANK_URL=" + bank.URL})
	for range 2 {
		if resp, body := pay(t, client); resp.StatusCode != http.StatusCreated || body != `{"id":"ch_1","status":"succeeded"}` {
			t.Fatalf("the service answers %d %s, want 201 and the charge\n%s", resp.StatusCode, body, said())
		}
	}
	if n := bank.charges.Load(); n != 1 {
		t.Errorf("the bank has charged %d times, want once", n)
	}
}

// bank charges once for each reference.
type bank struct {
	*httptest.Server
	charges atomic.Int64
}

// startBank starts a bank. It may lose its first answer.
func startBank(t *testing.T, loses bool) *bank {
	t.Helper()
	b := &bank{}
	var reference atomic.Value
	mux := http.NewServeMux()
	mux.HandleFunc("POST /charges", func(w http.ResponseWriter, r *http.Request) {
		var order struct{ Reference string }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil || r.Header.Get("Idempotency-Key") == "" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		reference.Store(order.Reference)
		if b.charges.Add(1) == 1 && loses {
			panic(http.ErrAbortHandler)
		}
		_, _ = io.WriteString(w, `{"id":"ch_1"}`)
	})
	mux.HandleFunc("GET /charges/{reference}", func(w http.ResponseWriter, r *http.Request) {
		if reference.Load() != r.PathValue("reference") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		_, _ = io.WriteString(w, `{"id":"ch_1"}`)
	})
	b.Server = httptest.NewServer(mux)
	t.Cleanup(b.Close)
	return b
}

// pay sends the same order with the same key.
func pay(t *testing.T, client *http.Client) (resp *http.Response, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://service/payments", strings.NewReader(`{"amount":1250}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Idempotency-Key", "order-1001")
	resp, err = client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp, string(text)
}

// start builds and starts a program, which listens on a Unix socket here. said stops it and returns what it has printed.
func start(t *testing.T, name string, env []string) (client *http.Client, said func() string) {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(name, "main.go"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	socket, main, binary := filepath.Join(dir, "s"), filepath.Join(dir, "main.go"), filepath.Join(dir, "service")
	code := strings.Replace(string(source), `r.Run("127.0.0.1:8080")`, "r.RunUnix("+strconv.Quote(socket)+")", 1)
	if err := os.WriteFile(main, []byte(code), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, main).CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var out bytes.Buffer
	service := exec.CommandContext(context.WithoutCancel(t.Context()), binary)
	service.Stdout, service.Stderr, service.Env = &out, &out, append(os.Environ(), append(env, "GIN_MODE=release")...)
	if err := service.Start(); err != nil {
		t.Fatal(err)
	}
	stopped := false
	said = func() string {
		if !stopped {
			stopped = true
			_ = service.Process.Kill()
			_ = service.Wait()
		}
		return out.String()
	}
	t.Cleanup(func() { said() })
	dial := func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		c, err := dial(t.Context())
		if err == nil {
			_ = c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the service does not start: %v\n%s", err, said())
		}
	}
	client = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}}
	t.Cleanup(client.CloseIdleConnections)
	return client, said
}
