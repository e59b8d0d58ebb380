package frameworks_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-contrib/timeout"
	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/database"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// answers of a time-out that a Gin service may choose.
var timeouts = map[string]func(*gin.Context){
	"408": func(c *gin.Context) { c.String(http.StatusRequestTimeout, "timeout") },
	"429": func(c *gin.Context) { c.String(http.StatusTooManyRequests, "slow down") },
	"403": func(c *gin.Context) { c.String(http.StatusForbidden, "no") },
	"503": func(c *gin.Context) { c.String(http.StatusServiceUnavailable, "later") },
}

// payments is a Gin service whose handler takes until the test lets it go on.
type payments struct {
	*testing.T
	url     string
	engine  *idem.Engine
	db      *database.DB // of joined mode
	runs    atomic.Int32
	started chan struct{}
	ends    chan struct{}
	mu      sync.Mutex
	misuses []error // and refusals as internal
}

// joinedEngine returns an engine on a new SQLite database. COMMIT refuses a payment from an account other than 1.
func joinedEngine(t *testing.T, opts ...idem.Option) (*idem.Engine, *database.DB) {
	t.Helper()
	db, err := database.Open("sqlite:"+filepath.Join(t.TempDir(), "payments.db"), database.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, ddl := range []string{
		"CREATE TABLE accounts (id INTEGER PRIMARY KEY)", "INSERT INTO accounts VALUES (1)",
		"CREATE TABLE payments (account INTEGER REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)",
	} {
		if _, err := db.Write.ExecContext(t.Context(), ddl); err != nil {
			t.Fatal(err)
		}
	}
	if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect); err != nil {
		t.Fatal(err)
	}
	store, err := sqlstore.New(t.Context(), db.Write, db.Dialect, sqlstore.WithSoleProcess(), sqlstore.WithReadPool(db.Read))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	joined, err := store.Joined()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := idem.NewJoined(joined, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return engine, db
}

func ginPayments(t *testing.T, joined bool, chain func(protect gin.HandlerFunc) []gin.HandlerFunc) *payments {
	t.Helper()
	p := &payments{T: t, started: make(chan struct{}, 16), ends: make(chan struct{})}
	observe := idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		if ev.Type == telemetry.EventMisused || ev.Type == telemetry.EventRefused && ev.Code == string(idem.CodeInternal) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.misuses = append(p.misuses, ev.Err)
		}
	})
	if joined {
		p.engine, p.db = joinedEngine(t, observe)
	} else {
		engine, err := idem.New(memorylock.New(), memorystore.New(), observe)
		if err != nil {
			t.Fatal(err)
		}
		p.engine = engine
	}
	protect, err := idemgin.New(p.engine, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
	if err != nil {
		t.Fatal(err)
	}
	gin.SetMode(gin.ReleaseMode)
	r := gin.New()
	r.POST("/pay", append(chain(protect), p.pay)...)
	server := httptest.NewServer(r)
	t.Cleanup(func() {
		server.Close()
		_ = p.engine.Close(context.Background())
	})
	p.url = server.URL
	return p
}

func (p *payments) pay(c *gin.Context) {
	if p.db != nil {
		tx, err := sqlstore.Tx(c.Request.Context())
		if err == nil {
			_, err = tx.ExecContext(c.Request.Context(), "INSERT INTO payments VALUES (1)")
		}
		if err != nil {
			c.String(http.StatusInternalServerError, "error")
			return
		}
	}
	p.runs.Add(1)
	p.started <- struct{}{}
	<-p.ends
	c.String(http.StatusCreated, "paid")
}

// post sends a request with the same key each time.
func (p *payments) post() (status int, body string) {
	p.Helper()
	r, err := http.NewRequestWithContext(p.Context(), http.MethodPost, p.url+"/pay", strings.NewReader(`{"amount":1}`))
	if err != nil {
		p.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "order-1001")
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		p.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// A time-out of gin-contrib runs the chain in a goroutine. On whichever side it is, nothing runs, whatever it answers.
func TestGinRefusesATimeoutThatRunsTheChain(t *testing.T) {
	limit := timeout.New(timeout.WithTimeout(10*time.Second), timeout.WithResponse(timeouts["429"]))
	for side, chain := range map[string]func(gin.HandlerFunc) []gin.HandlerFunc{
		"outside": func(p gin.HandlerFunc) []gin.HandlerFunc { return []gin.HandlerFunc{limit, p} },
		"inside":  func(p gin.HandlerFunc) []gin.HandlerFunc { return []gin.HandlerFunc{p, limit} },
		"outside, in a func": func(p gin.HandlerFunc) []gin.HandlerFunc {
			return []gin.HandlerFunc{func(c *gin.Context) { limit(c) }, p}
		},
	} {
		for mode, joined := range map[string]bool{"joined": true, "lock and store": false} {
			t.Run(side+" "+mode, func(t *testing.T) {
				p := ginPayments(t, joined, chain)
				close(p.ends)
				p.post()
				p.post()
				p.mu.Lock()
				defer p.mu.Unlock()
				if p.runs.Load() != 0 || len(p.misuses) == 0 {
					t.Errorf("the handler ran %d times, and %d events tell of the time-out, want never and some", p.runs.Load(), len(p.misuses))
				}
			})
		}
	}
}

// A timer that answers for the handler from its own goroutine gives no key back, on either side.
func TestGinTimerThatAnswersGivesNoKeyBack(t *testing.T) {
	for _, status := range []int{408, 429, 403, 422, 503} {
		for side, inside := range map[string]bool{"inside": true, "outside": false} {
			for mode, joined := range map[string]bool{"joined": true, "lock and store": false} {
				t.Run(strconv.Itoa(status)+" "+side+" "+mode, func(t *testing.T) {
					// The timer answers once the handler runs, and the handler goes on after that.
					var p *payments
					timer := func(c *gin.Context) {
						go func() {
							<-p.started
							c.AbortWithStatusJSON(status, "time-out")
							p.ends <- struct{}{}
						}()
						c.Next()
					}
					p = ginPayments(t, joined, func(protect gin.HandlerFunc) []gin.HandlerFunc {
						if inside {
							return []gin.HandlerFunc{protect, timer}
						}
						return []gin.HandlerFunc{timer, protect}
					})
					p.payOnce()
				})
			}
		}
	}
}

// payOnce sends the key four times while the handler cannot end, and expects that it is not charged twice.
func (p *payments) payOnce() {
	p.Helper()
	for range 4 {
		if status, body := p.post(); status < 400 || strings.Contains(body, "paid") {
			p.Errorf("answer = %d %q, want none of a success", status, body)
		}
	}
	close(p.ends)
	charges := int(p.runs.Load())
	if p.db != nil {
		if err := p.db.Read.QueryRowContext(p.Context(), "SELECT count(*) FROM payments").Scan(&charges); err != nil {
			p.Fatal(err)
		}
	}
	if charges > 1 {
		p.Errorf("charged %d times, want once at most", charges)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.misuses) == 0 {
		p.Error("no event tells of the time-out")
	}
}
