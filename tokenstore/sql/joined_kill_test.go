package sqlstore

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// Environment of an instance that a test starts and kills.
const (
	envInstance = "IDEMKEEPER_TEST_JOINED_INSTANCE" // name of the backend
	envWrite    = "IDEMKEEPER_TEST_JOINED_WRITE"    // data source names
	envRead     = "IDEMKEEPER_TEST_JOINED_READ"
	envKills    = "IDEMKEEPER_TEST_JOINED_KILLS" // how many kills; 30 by default
)

// runInstance is the process of an instance. It serves until it is killed.
func runInstance(name string) error {
	gin.SetMode(gin.ReleaseMode)
	dialect, driver := PostgreSQL(), "pgx"
	switch name {
	case "MariaDB", "MySQL":
		dialect, driver = MySQL(), "mysql"
	case "SQLite":
		dialect, driver = SQLite(), "sqlite"
	}
	write, err := sql.Open(driver, os.Getenv(envWrite))
	if err != nil {
		return err
	}
	opts := []Option{quiet()}
	write.SetMaxOpenConns(8)
	if name == "SQLite" {
		write.SetMaxOpenConns(1)
		read, err := sql.Open(driver, os.Getenv(envRead))
		if err != nil {
			return err
		}
		opts = append(opts, WithReadPool(read), WithSoleProcess())
	}
	store, err := New(context.Background(), write, dialect, opts...)
	if err != nil {
		return err
	}
	joined, err := store.Joined()
	if err != nil {
		return err
	}
	engine, err := idem.NewJoined(joined)
	if err != nil {
		return err
	}
	router := gin.New()
	router.POST("/pay", idemgin.Middleware(engine, idem.Policy{Scope: func(context.Context) (string, error) { return "merchant", nil }}), func(c *gin.Context) {
		tx, err := Tx(c)
		if err == nil {
			err = payUniquely(c, tx)
		}
		if err != nil {
			c.String(http.StatusInternalServerError, "sorry")
		}
	})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "ready", ln.Addr())
	return http.Serve(ln, router)
}

// process is an instance that a test kills and starts again.
type process struct {
	t   *testing.T
	env []string

	mu   sync.Mutex
	cmd  *exec.Cmd
	addr string
}

func (p *process) start() {
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = append(os.Environ(), p.env...), os.Stderr, testserver.ChildAttr()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	addr, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if !ok {
		p.t.Errorf("an instance said %q, %v, want ready", line, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cmd, p.addr = cmd, addr
}

func (p *process) kill() {
	p.mu.Lock()
	cmd := p.cmd
	p.mu.Unlock()
	_ = cmd.Process.Signal(syscall.SIGKILL)
	_ = cmd.Wait()
}

// pay sends a payment. A broken connection counts as no answer.
func (p *process) pay(client *http.Client, key string) (answer, bool) {
	p.mu.Lock()
	addr := p.addr
	p.mu.Unlock()
	r, err := http.NewRequest(http.MethodPost, "http://"+addr+"/pay", strings.NewReader(`{"amount":100}`))
	if err != nil {
		return answer{}, false
	}
	r.GetBody = nil // no retry by net/http itself
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return answer{}, false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, false
	}
	a := answer{status: resp.StatusCode, body: string(body), replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
	if _, after, ok := strings.Cut(a.body, `"code":"`); ok {
		a.code, _, _ = strings.Cut(after, `"`)
	}
	return a, true
}

// readDSN returns the name for reading of a file that is named for writing.
func readDSN(t *testing.T, write string) string {
	t.Helper()
	u, err := url.Parse(write)
	if err != nil {
		t.Fatal(err)
	}
	_, read := SQLiteDSN(u.Path)
	return read
}

// TestJoinedPaysOnceWhileInstancesAreKilled kills processes at any moment, without a resolver.
func TestJoinedPaysOnceWhileInstancesAreKilled(t *testing.T) {
	kills := 30
	if n, err := strconv.Atoi(os.Getenv(envKills)); err == nil {
		kills = n
	}
	onEach(t, func(t *testing.T, b backend) {
		s := startService(t, b, serviceParts{})
		n := 3
		write, read := s.pools.dsn, ""
		if b.dialect == SQLite() {
			n, read = 1, readDSN(t, write)
			_ = s.pools.write.Close() // the file is the process's
		}
		instances := make([]*process, n)
		for i := range instances {
			p := &process{t: t, env: []string{envInstance + "=" + b.name, envWrite + "=" + write, envRead + "=" + read}}
			p.start()
			t.Cleanup(p.kill)
			instances[i] = p
		}
		ctx, stop := context.WithCancel(t.Context())
		var killer, clients sync.WaitGroup
		killer.Go(func() {
			defer stop()
			for range kills {
				<-time.After(rand.N(60 * time.Millisecond)) // any moment will do
				p := instances[rand.IntN(n)]
				p.kill()
				p.start()
			}
		})
		h := &history{paid: map[string]map[string]bool{}, final: map[string]string{}}
		var next atomic.Int64
		for range 6 {
			clients.Go(func() {
				client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
				for ctx.Err() == nil {
					key := fmt.Sprintf("key-%d", next.Add(1)/2)
					for began := time.Now(); ; {
						a, answered := instances[rand.IntN(n)].pay(client, key)
						if answered {
							h.note(key, a)
							if settled(a) {
								break
							}
						}
						if time.Since(began) > 2*patience {
							t.Errorf("%s was never answered, the last time %v", key, a)
							return
						}
					}
				}
			})
		}
		killer.Wait()
		clients.Wait()
		h.check(t, s)
		answered := 0
		for key, last := range h.final {
			if !strings.HasPrefix(last, "201 ") {
				t.Errorf("the last answer of %s is %s, want the payment", key, last)
			}
			answered++
		}
		s.wantPayments(answered)
		t.Logf("%d kills, %d payments", kills, answered)
		// Every acknowledged answer is replayed byte for byte.
		client := &http.Client{Timeout: patience, Transport: &http.Transport{DisableKeepAlives: true}}
		for key, bodies := range h.paid {
			if a, ok := instances[0].pay(client, key); !ok || a.status != 201 || !a.replayed || !bodies[a.body] {
				t.Errorf("%s is replayed as %v, want %v", key, a, bodies)
			}
		}
	})
}
