package sqlstore_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Environment of an instance that a test starts and kills.
const (
	envInstance = "IDEMKEEPER_TEST_JOINED_INSTANCE" // name of the backend
	envWrite    = "IDEMKEEPER_TEST_JOINED_WRITE"    // data source names
	envRead     = "IDEMKEEPER_TEST_JOINED_READ"
)

// runInstance is the process of an instance. It serves until it is killed. It has no resolver.
func runInstance(name string) error {
	gin.SetMode(gin.ReleaseMode)
	d, driver := dialect.PostgreSQL, driverOf(os.Getenv(envWrite))
	switch name {
	case "MariaDB", "MySQL", compounding.name:
		d = dialect.MySQL
	case "SQLite":
		d = dialect.SQLite
	}
	write, err := sql.Open(driver, os.Getenv(envWrite))
	if err != nil {
		return err
	}
	opts := []sqlstore.Option{quiet()}
	write.SetMaxOpenConns(8)
	write.SetMaxIdleConns(8)
	if name == "SQLite" {
		write.SetMaxOpenConns(1)
		read, err := sql.Open(driver, os.Getenv(envRead))
		if err != nil {
			return err
		}
		opts = append(opts, sqlstore.WithReadPool(read), sqlstore.WithSoleProcess())
	}
	store, err := sqlstore.New(context.Background(), write, d, opts...)
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
	router.POST("/pay", idemgin.MustNew(engine, idem.Policy{Scope: func(context.Context) (string, error) { return "merchant", nil }}), func(c *gin.Context) {
		tx, err := sqlstore.Tx(c)
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

// startInstances starts processes on the database of a service: three, or one that has a file of
// SQLite for itself.
func startInstances(s *service) (instances []*process) {
	s.Helper()
	n, write, read := 3, s.pools.dsn, ""
	if s.backend.dialect == dialect.SQLite {
		u, err := url.Parse(write)
		must(s, err)
		n = 1
		_, read = sqlstore.SQLiteDSN(u.Path)
		_ = s.pools.write.Close()
	}
	for range n {
		p := &process{t: s.T, env: []string{envInstance + "=" + s.backend.name, envWrite + "=" + write, envRead + "=" + read}}
		p.start()
		s.Cleanup(p.kill)
		instances = append(instances, p)
	}
	return instances
}

func (p *process) start() {
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = append(os.Environ(), p.env...), os.Stderr, testserver.ChildAttr()
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		p.t.Error(err)
		return
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

// pay sends a payment. The error tells that no answer came.
func (p *process) pay(client *http.Client, key string) (a answer, err error) {
	p.mu.Lock()
	addr := p.addr
	p.mu.Unlock()
	r, err := http.NewRequest(http.MethodPost, "http://"+addr+"/pay", strings.NewReader(`{"amount":100}`))
	if err != nil {
		return a, err
	}
	r.GetBody = nil // no retry by net/http itself
	r.Header.Set("Idempotency-Key", key)
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r)
	if err != nil {
		return a, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return a, err
	}
	a = answer{status: resp.StatusCode, body: string(body), replayed: resp.Header.Get("Idempotent-Replayed") == "true"}
	if _, after, ok := strings.Cut(a.body, `"code":"`); ok {
		a.code, _, _ = strings.Cut(after, `"`)
	}
	return a, nil
}
