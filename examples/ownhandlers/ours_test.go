package ownhandlers_test

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/crashtest"
	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	"github.com/idemkeeper/idemkeeper/examples/ownhandlers"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// The same handlers on Idemkeeper, to compare.

// joined writes the payment in the transaction of its record.
func joined(p part) (gin.HandlerFunc, error) {
	engine, err := joinedEngine(p.db)
	if err != nil {
		return nil, err
	}
	return protected(engine, idem.LeaveUnknown(), func(ctx context.Context, body []byte) (ownhandlers.Answer, error) {
		tx, err := sqlstore.Tx(ctx)
		if err != nil {
			return ownhandlers.Answer{}, err
		}
		return insert(ctx, tx, body)
	})
}

func joinedEngine(db *sql.DB) (*idem.Engine, error) {
	ctx := context.Background()
	if err := sqlstore.Migrate(ctx, db, dialect.PostgreSQL); err != nil {
		return nil, err
	}
	return sqlstore.Join(ctx, db, dialect.PostgreSQL, sqlstore.WithLogger(slog.New(slog.DiscardHandler)))
}

// withLock calls the bank, and writes the payment afterwards. If nobody knows whether the bank has charged, the client is told so.
func withLock(p part) (gin.HandlerFunc, error) {
	ctx := context.Background()
	if err := sqlstore.Migrate(ctx, p.db, dialect.PostgreSQL); err != nil {
		return nil, err
	}
	engine, err := idemsql.New(ctx, p.db, dialect.PostgreSQL, sqllock.WithTTL(p.env.Session))
	if err != nil {
		return nil, err
	}
	capture := p.call("bank", "/captures")
	return protected(engine, idem.LeaveUnknown(), func(ctx context.Context, body []byte) (a ownhandlers.Answer, err error) {
		if err := capture(ctx, orderOf(body)); err != nil {
			return a, err
		}
		tx, err := p.db.BeginTx(ctx, nil)
		if err != nil {
			return a, err
		}
		defer func() { _ = tx.Rollback() }()
		if a, err = insert(ctx, tx, body); err != nil {
			return a, err
		}
		return a, tx.Commit()
	})
}

// protected puts the middleware in front of a handler.
func protected(engine *idem.Engine, doubt idem.InDoubt, pay func(ctx context.Context, body []byte) (ownhandlers.Answer, error)) (gin.HandlerFunc, error) {
	router := gin.New()
	middleware := idemgin.MustNew(engine, idem.Policy{AllowGlobalKeys: true, InDoubt: doubt})
	router.POST("/pay", middleware, func(c *gin.Context) {
		body, err := io.ReadAll(c.Request.Body)
		var a ownhandlers.Answer
		if err == nil {
			a, err = pay(c.Request.Context(), body)
		}
		if err != nil {
			c.AbortWithStatus(http.StatusInternalServerError)
			return
		}
		c.Data(a.Status, "application/json", a.Body)
	})
	return func(c *gin.Context) { router.ServeHTTP(c.Writer, c.Request) }, nil
}

func TestJoinedPaymentsSurvive(t *testing.T) {
	crashtest.Run(t, subject(joined, nil))
}

// This bank ignores keys. The payment is made once at most, and the client is told if nobody knows.
func TestLockedBankPaymentsSurvive(t *testing.T) {
	crashtest.Run(t, subject(withLock, &system{name: "bank"}))
}

// Duplicates of a slow payment wait in the unique index of the table by hand, each with a connection. The payment of another
// customer then waits for a connection as long as the slow one takes. With -v the test prints how long.
func TestOthersWaitBehindDuplicates(t *testing.T) {
	const pool, slow = 20, time.Second
	for _, c := range []struct {
		name  string
		waits bool
		make  func(db *sql.DB, pay func(ctx context.Context, tx *sql.Tx, body []byte) (ownhandlers.Answer, error)) (gin.HandlerFunc, error)
	}{
		{"a table by hand", true, func(db *sql.DB, pay func(ctx context.Context, tx *sql.Tx, body []byte) (ownhandlers.Answer, error)) (gin.HandlerFunc, error) {
			return (&ownhandlers.Payments{DB: db, Pay: pay}).Handle, nil
		}},
		{"joined", false, func(db *sql.DB, pay func(ctx context.Context, tx *sql.Tx, body []byte) (ownhandlers.Answer, error)) (gin.HandlerFunc, error) {
			engine, err := joinedEngine(db)
			if err != nil {
				return nil, err
			}
			return protected(engine, idem.LeaveUnknown(), func(ctx context.Context, body []byte) (ownhandlers.Answer, error) {
				tx, err := sqlstore.Tx(ctx)
				if err != nil {
					return ownhandlers.Answer{}, err
				}
				return pay(ctx, tx, body)
			})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			db, _ := ownhandlers.Database(t, testserver.SharedPostgres(t))
			db.SetMaxOpenConns(pool)
			running, goOn := make(chan struct{}), make(chan struct{})
			handle, err := c.make(db, func(ctx context.Context, tx *sql.Tx, body []byte) (ownhandlers.Answer, error) {
				if strings.Contains(string(body), "slow") {
					close(running)
					<-goOn
				}
				return insert(ctx, tx, body)
			})
			if err != nil {
				t.Fatal(err)
			}
			router := gin.New()
			router.POST("/pay", handle)
			send := func(key string) int {
				req := httptest.NewRequest(http.MethodPost, "/pay", strings.NewReader(`{"order":"`+key+`","amount":1}`))
				req.Header.Set("Idempotency-Key", key)
				w := httptest.NewRecorder()
				router.ServeHTTP(w, req)
				return w.Code
			}
			var all sync.WaitGroup
			all.Go(func() { send("slow") })
			<-running
			began := time.Now()
			for range 2 * pool {
				all.Go(func() { send("slow") })
			}
			// The duplicates wait, or they have been refused.
			for c.waits && db.Stats().InUse < pool {
				time.Sleep(time.Millisecond)
			}
			paid := make(chan time.Duration)
			go func() {
				asked := time.Now()
				if status := send("other"); status != http.StatusCreated {
					t.Errorf("the other payment got %d", status)
				}
				paid <- time.Since(asked)
			}()
			var waited time.Duration
			done := false
			select {
			case waited = <-paid:
				done = true
			case <-time.After(time.Until(began.Add(slow))):
			}
			if !c.waits && !done { // on a busy machine
				waited, done = <-paid, true
			}
			close(goOn)
			if !done {
				waited = <-paid
			}
			all.Wait()
			if done == c.waits {
				t.Errorf("the other payment was made beside the slow one: %t", done)
			}
			t.Logf("%d duplicates of a payment of %v on a pool of %d: another payment took %v", 2*pool, slow, pool, waited.Round(time.Millisecond))
		})
	}
}
