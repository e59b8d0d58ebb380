package wiring

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

// atARequest are faults that the first request meets.
var atARequest = []fault{
	{"the middleware is before the authentication", func(t *testing.T) string {
		return serve(t, inMemory(t), idem.Policy{Scope: idem.ScopeFrom("merchant")}, paid)
	}, `route=.POST /payments. .*the context has nothing under "merchant"`, `the authentication has to run before the middleware`},
	{"the same with Gin, in joined mode", func(t *testing.T) string {
		return serveGin(t, joined(t, postgres(t)), idem.Policy{Scope: idem.ScopeFrom("merchant")}, func(c *gin.Context) { c.Status(http.StatusCreated) })
	}, `route=.POST /payments. .*the context has nothing under "merchant"`, `the authentication has to run before the middleware`},
	{"the same with gRPC", func(t *testing.T) string {
		protect, err := idemgrpc.New(inMemory(t), []idem.Policy{{Name: healthpb.Health_Check_FullMethodName, Scope: idem.ScopeFrom("merchant"), InDoubt: idem.LeaveUnknown()}})
		kit.Fatal(t, err)
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("idempotency-key", "k1"))
		_, err = protect.Unary()(ctx, new(healthpb.HealthCheckRequest), &grpc.UnaryServerInfo{FullMethod: healthpb.Health_Check_FullMethodName},
			func(context.Context, any) (any, error) { return new(healthpb.HealthCheckResponse), nil })
		return text(err)
	}, `route=/grpc.health.v1.Health/Check .*the context has nothing under "merchant"`, `the authentication has to run before the middleware`},
	{"the principal is no string", func(t *testing.T) string {
		type key struct{}
		return serve(t, inMemory(t), idem.Policy{Scope: idem.ScopeFrom(key{})}, paid, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), key{}, 42)))
			})
		})
	}, `no string under wiring.key{}, but a value of type int`, `give Policy.Scope a function that makes a string of it`},
	{"the body was read in front", func(t *testing.T) string {
		return serve(t, inMemory(t), everybody, paid, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				next.ServeHTTP(w, r)
			})
		})
	}, `the request body was read before the middleware saw it`, `exchange.ReadBody`},
	{"the body was bound in front, with Gin", func(t *testing.T) string {
		return serveGin(t, inMemory(t), everybody, func(c *gin.Context) { c.Status(http.StatusCreated) }, func(c *gin.Context) {
			_ = c.ShouldBindJSON(new(any))
		})
	}, `the request body was read before the middleware saw it`, `c.ShouldBindBodyWithJSON`},
	{"the middleware is there twice, with another policy", func(t *testing.T) string {
		e := inMemory(t)
		outer, err := idemhttp.New(e, everybody)
		kit.Fatal(t, err)
		other := everybody
		other.DuplicateWait, other.ResultTTL = time.Second, time.Hour
		return serve(t, e, other, paid, outer)
	}, `differs from .* in DuplicateWait, ResultTTL`, `mount the middleware once, or twice with one policy`},
	{"the handler writes past its transaction", func(t *testing.T) string {
		db := postgres(t)
		return serve(t, joined(t, db), everybody, func(w http.ResponseWriter, r *http.Request) { paid(w, r) })
	}, `level=ERROR .*route=.POST /payments. .*never took its joined transaction`, `write through sqlstore.Tx.ctx., or pgxstore.Tx.ctx.`},
	{"the handler writes past its transaction, and through it, which nobody can notice", func(t *testing.T) string {
		return page(t, "README.md")
	}, `over .db. and not over .tx. is not protected`, `search it for`},
	{"the handler had an isolation level of its own, which nobody can notice", func(t *testing.T) string {
		return page(t, "README.md")
	}, `default isolation level of the database`, `sqlstore.WithIsolation`},
	{"the handler rolls back in a deferred call", func(t *testing.T) string {
		return serve(t, joined(t, postgres(t)), everybody, func(w http.ResponseWriter, r *http.Request) {
			tx, err := sqlstore.Tx(r.Context())
			kit.Fatal(t, err)
			defer tx.Rollback()
			paid(w, r)
		})
	}, `the handler called Commit or Rollback of its transaction`, `leave COMMIT and ROLLBACK to the middleware`},
	{"the handler commits and ignores the error", func(t *testing.T) string {
		return serve(t, joined(t, postgres(t)), everybody, func(w http.ResponseWriter, r *http.Request) {
			tx, err := sqlstore.Tx(r.Context())
			kit.Fatal(t, err)
			_ = tx.Commit()
			paid(w, r)
		})
	}, `the handler called Commit or Rollback of its transaction`, `leave COMMIT and ROLLBACK to the middleware`},
	{"the handler commits by a statement", func(t *testing.T) string {
		said := ""
		answer := serve(t, joined(t, postgres(t)), everybody, func(w http.ResponseWriter, r *http.Request) {
			tx, err := sqlstore.Tx(r.Context())
			kit.Fatal(t, err)
			_, err = tx.ExecContext(r.Context(), "COMMIT")
			said = text(err)
			paid(w, r)
		})
		return said + answer
	}, `idem_only_the_middleware_commits`, `leave COMMIT and ROLLBACK to the middleware`},
	{"the handler of pgx rolls back in a deferred call", func(t *testing.T) string {
		name, _ := scratch.Database(t, testserver.SharedPostgres(t))
		pool, err := pgxpool.New(t.Context(), name)
		kit.Fatal(t, err)
		t.Cleanup(pool.Close)
		e, err := pgxstore.Join(t.Context(), pool)
		kit.Fatal(t, err)
		closing(t, e.Close)
		return serve(t, e, everybody, func(w http.ResponseWriter, r *http.Request) {
			tx, err := pgxstore.Tx(r.Context())
			kit.Fatal(t, err)
			defer tx.Rollback(r.Context())
			paid(w, r)
		})
	}, `the handler called Commit or Rollback of its transaction`, `leave COMMIT and ROLLBACK to the middleware`},
	{"the transaction in another context, or on a route without the middleware", func(t *testing.T) string {
		_, err := sqlstore.Tx(context.Background())
		return text(err)
	}, `not inside an execution`, `pass the context of the request, and look whether the middleware is on this route`},
	{"the gate in another context", func(t *testing.T) string {
		_, err := idem.CheckOwner(context.Background())
		return text(err)
	}, `not inside an execution`, `pass the context of the request, and look whether the middleware is on this route`},
	{"the body is malformed", func(t *testing.T) string {
		return send(t, protected(t, inMemory(t), everybody, paid), `{"amount":,}`)
	}, `^400 .*JSON is malformed at byte 11`, `not well-formed for its media type`},
	{"the body has a member twice", func(t *testing.T) string {
		return send(t, protected(t, inMemory(t), everybody, paid), `{"amount":1,"amount":2}`)
	}, `^400 .*two members of one name`, `at byte 22`},
	{"Redis was flushed", func(t *testing.T) string {
		client := redisAt(t, testserver.StartRedis(t).Addr())
		e := inRedis(t, client)
		h := protected(t, e, everybody, paid)
		send(t, h, "{}")
		kit.Fatal(t, client.FlushAll(t.Context()).Err())
		return send(t, h, "{}")
	}, `code=store-lost .*lost its records`, `look whether this is the right server, .* idemctl store accept`},
	{"Redis is gone", func(t *testing.T) string {
		proxy := testserver.StartRedisProxy(t, addr(t, testserver.SharedRedis(t)))
		h := protected(t, inRedis(t, redisAt(t, proxy.Addr())), everybody, paid)
		proxy.Refuse(true)
		proxy.Cut()
		defer proxy.Restore() // the engine undoes what it has begun
		return send(t, h, "{}")
	}, `code=unavailable .*connection refused`, `idemctl doctor`},
	{"the rights were taken away", func(t *testing.T) string {
		name, db := scratch.Database(t, testserver.SharedPostgres(t))
		h := protected(t, joined(t, userOf(t, name, db.Write, "ALL")), everybody, paid)
		_, err := db.Write.ExecContext(t.Context(), "REVOKE INSERT ON idem_records FROM PUBLIC; DO $$ DECLARE r text; BEGIN FOR r IN SELECT grantee FROM information_schema.role_table_grants WHERE table_name = 'idem_records' AND grantee <> current_user LOOP EXECUTE 'REVOKE INSERT ON idem_records FROM ' || quote_ident(r); END LOOP; END $$")
		kit.Fatal(t, err)
		return send(t, h, "{}")
	}, `lacks rights: .*permission denied for table idem_records`, `idemctl doctor, .* or which setting or right it lacks`},
	{"a pooler without transactions", func(t *testing.T) string {
		name, _ := scratch.Database(t, testserver.SharedPostgres(t))
		u, err := url.Parse(name)
		kit.Fatal(t, err)
		pooler := testserver.StartPgBouncer(t, testserver.SharedPostgres(t), "pool_mode = statement")
		db, err := sql.Open("pgx", pooler.URL(strings.TrimPrefix(u.Path, "/")))
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = db.Close() })
		e, err := sqlstore.Join(t.Context(), db, dialect.PostgreSQL)
		if err != nil {
			return text(err)
		}
		closing(t, e.Close)
		return serve(t, e, everybody, paid)
	}, `the pooler in front of the server gives none`, `set its pool_mode to transaction .docs/sql.md#poolers`},
	{"a pooler, and prepared statements", func(t *testing.T) string {
		name, _ := scratch.Database(t, testserver.SharedPostgres(t))
		u, err := url.Parse(name)
		kit.Fatal(t, err)
		pooler := testserver.StartPgBouncer(t, testserver.SharedPostgres(t))
		prepared := strings.ReplaceAll(pooler.URL(strings.TrimPrefix(u.Path, "/")), "&default_query_exec_mode=exec", "")
		db, err := sql.Open("pgx", prepared)
		kit.Fatal(t, err)
		t.Cleanup(func() { _ = db.Close() })
		e, err := sqlstore.Join(t.Context(), db, dialect.PostgreSQL)
		kit.Fatal(t, err)
		closing(t, e.Close)
		h := protected(t, e, everybody, refuse)
		send(t, h, "{}")
		others := scratch.Open(t, pooler.URL(strings.TrimPrefix(u.Path, "/"))).Write
		for range 4 { // take the sessions of before
			tx, err := others.BeginTx(t.Context(), nil)
			kit.Fatal(t, err)
			defer tx.Rollback()
		}
		return send(t, h, "{}")
	}, `prepared statement .* does not exist`, `default_query_exec_mode=exec in its connect string .docs/sql.md#poolers`},
	{"the engine is closed before the server", func(t *testing.T) string {
		e := inMemory(t)
		h := protected(t, e, everybody, paid)
		kit.Fatal(t, e.Close(t.Context()))
		return send(t, h, "{}")
	}, `engine is closed`, `end the server before it`},
}

// everybody shares the keys.
var everybody = idem.Policy{Name: "POST /payments", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}

func paid(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) }

func refuse(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) }

func inMemory(t *testing.T) *idem.Engine {
	t.Helper()
	e := idem.MustNew(memorylock.New(), memorystore.New())
	closing(t, e.Close)
	return e
}

func joined(t *testing.T, db *sql.DB) *idem.Engine {
	t.Helper()
	e, err := sqlstore.Join(t.Context(), db, dialect.PostgreSQL)
	kit.Fatal(t, err)
	closing(t, e.Close)
	return e
}

// protected is a handler behind the middleware and the others, of which the first one is the outermost.
func protected(t *testing.T, e *idem.Engine, p idem.Policy, pay http.HandlerFunc, outside ...func(http.Handler) http.Handler) http.Handler {
	t.Helper()
	p.Name, p.InDoubt = "POST /payments", idem.LeaveUnknown()
	protect, err := idemhttp.New(e, p)
	kit.Fatal(t, err)
	h := protect(pay)
	for _, o := range outside {
		h = o(h)
	}
	return h
}

// serve sends a request to a handler behind the middleware, and returns the answer.
func serve(t *testing.T, e *idem.Engine, p idem.Policy, pay http.HandlerFunc, outside ...func(http.Handler) http.Handler) string {
	t.Helper()
	return send(t, protected(t, e, p, pay, outside...), `{"amount":1}`)
}

func serveGin(t *testing.T, e *idem.Engine, p idem.Policy, pay gin.HandlerFunc, outside ...gin.HandlerFunc) string {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	p.InDoubt = idem.LeaveUnknown()
	protect, err := idemgin.New(e, p)
	kit.Fatal(t, err)
	r := gin.New()
	r.POST("/payments", append(outside, protect, pay)...)
	return send(t, r, `{"amount":1}`)
}

// send returns the answer to a request.
func send(t *testing.T, h http.Handler, body string) string {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", "k1")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return fmt.Sprintf("%d %s", w.Code, w.Body)
}
