// Package paytest is the suite of tests that each example passes, on a PostgreSQL database of
// its own. A payment commits with its record, a repeat gets the same answer, and an attempt that
// was refused, failed or killed leaves nothing.
package paytest

import (
	"context"
	"database/sql"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
	"slices"
)

// Payment is what a client asks for.
type Payment struct {
	ID     string `json:"-"` // the operation ID
	Payer  string `json:"payer"`
	Amount int64  `json:"amount"`
}

// Pay writes a payment in the transaction of the running handler. It returns what the payer has
// paid in all, as that transaction sees it.
type Pay func(ctx context.Context, p Payment) (sum int64, err error)

// Limit is what a payer may pay in all. The handler refuses more after it has written.
const Limit = 1000

// Open opens what a service of an example has. Databases come from Setting.SQL and Setting.Pgx.
type Open func(ctx context.Context, s *Setting) (Pay, error)

// Setting is where an example runs.
type Setting struct {
	Database string // its URL
	Receiver string // the URL of another system

	// Reach says that a step was reached. It does not return in a process that is to be killed
	// at this step.
	Reach func(step string)

	joined *sqlstore.Joined
	close  []func()
}

// OnClose adds to what happens at the end of the service, the last one first.
func (s *Setting) OnClose(f func()) { s.close = append(s.close, f) }

func (s *Setting) end() {
	for _, f := range slices.Backward(s.close) {
		f()
	}
}

// SQL returns a pool of database/sql, on which the service has its joined store.
func (s *Setting) SQL(ctx context.Context) (*sql.DB, error) {
	db, err := sql.Open("pgx", s.Database)
	if err != nil {
		return nil, err
	}
	s.OnClose(func() { _ = db.Close() })
	db.SetMaxOpenConns(8)
	db.SetMaxIdleConns(8)
	store, err := s.store(ctx, db)
	if err != nil {
		return nil, err
	}
	s.joined, err = store.Joined()
	return db, err
}

// Pgx returns a pool of pgx, on which the service has its joined store.
func (s *Setting) Pgx(ctx context.Context) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(s.Database)
	if err != nil {
		return nil, err
	}
	cfg.MaxConns = 8
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	s.OnClose(pool.Close)
	db := stdlib.OpenDBFromPool(pool)
	s.OnClose(func() { _ = db.Close() })
	store, err := s.store(ctx, db)
	if err != nil {
		return nil, err
	}
	s.joined, err = pgxstore.Joined(store, pool)
	return pool, err
}

func (s *Setting) store(ctx context.Context, db *sql.DB) (*sqlstore.Store, error) {
	store, err := sqlstore.New(ctx, db, dialect.PostgreSQL, sqlstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err == nil {
		s.OnClose(func() { _ = store.Close() })
	}
	return store, err
}

// service is a Gin service with one protected route, POST /pay.
type service struct {
	http.Handler

	engine *idem.Engine
	// after runs in the handler after the payment was written, and before the answer.
	after func(c *gin.Context)
}

func newService(ctx context.Context, s *Setting, open Open) (*service, error) {
	pay, err := open(ctx, s)
	if err != nil {
		return nil, err
	}
	engine, err := idem.NewJoined(s.joined, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		if ev.Type == telemetry.EventCompleted {
			s.Reach(Committed)
		}
	}))
	if err != nil {
		return nil, err
	}
	s.OnClose(func() { _ = engine.Close(context.WithoutCancel(ctx)) })
	v := &service{engine: engine, after: func(*gin.Context) {}}
	router := gin.New()
	router.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusInternalServerError) }))
	merchant := func(context.Context) (string, error) { return "merchant", nil }
	router.POST("/pay", idemgin.MustNew(engine, idem.Policy{Scope: merchant}), func(c *gin.Context) { v.handle(c, pay, s.Reach) })
	v.Handler = router
	return v, nil
}

func (v *service) handle(c *gin.Context, pay Pay, reach func(string)) {
	var p Payment
	x, ok := idem.FromContext(c.Request.Context())
	if err := c.ShouldBindJSON(&p); err != nil || !ok {
		c.Status(http.StatusBadRequest)
		return
	}
	p.ID = x.OperationID
	sum, err := pay(c.Request.Context(), p)
	if err != nil {
		_ = c.Error(err)
		c.String(http.StatusInternalServerError, "sorry")
		return
	}
	reach(Written)
	if v.after(c); c.IsAborted() {
		return
	}
	if sum > Limit {
		c.String(http.StatusPaymentRequired, "over the limit")
		return
	}
	c.JSON(http.StatusCreated, gin.H{"id": p.ID, "sum": sum})
}
