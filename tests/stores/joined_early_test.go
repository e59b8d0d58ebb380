package stores

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A COMMIT that a deferred constraint refuses undoes the payment after its handler has answered. Whatever
// the handler does with its answer, the client is not told of a success.
func TestFailedCommitIsNotToldAsASuccess(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2<<20)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, long)
	}))
	t.Cleanup(upstream.Close)
	target, err := url.Parse(upstream.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }}
	answers := map[string]http.HandlerFunc{
		"flushed": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "11")
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"ok":true}`)
			w.(http.Flusher).Flush()
		},
		"an event stream": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: paid\n\n")
			w.(http.Flusher).Flush()
		},
		"long": func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "receipt.txt", time.Time{}, strings.NewReader(long))
		},
		"proxied": proxy.ServeHTTP,
	}
	for name, open := range map[string]func(*testing.T) (*database.DB, string){"SQLite": deferredSQLite, "PostgreSQL": deferredPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, insert := open(t)
			engine := joinedEngine(t, db)
			for answer, h := range answers {
				for outside, serve := range map[string]func(*idem.Engine, http.Handler) http.Handler{"net/http": plainRoute, "a recovery outside": recoveredRoute} {
					for _, http2 := range []bool{false, true} {
						srv := httptest.NewUnstartedServer(serve(engine, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
							tx, err := sqlstore.Tx(r.Context())
							if err == nil {
								_, err = tx.ExecContext(r.Context(), insert)
							}
							if err != nil {
								t.Errorf("payment: %v", err)
							}
							h(w, r)
						})))
						if srv.EnableHTTP2 = http2; http2 {
							srv.StartTLS()
						} else {
							srv.Start()
						}
						t.Cleanup(srv.Close)
						r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL+"/pay", http.NoBody)
						if err != nil {
							t.Fatal(err)
						}
						r.Header.Set("Idempotency-Key", driver.NewNonce().String())
						resp, err := srv.Client().Do(r)
						if err != nil {
							t.Fatal(err)
						}
						body, err := io.ReadAll(resp.Body)
						_ = resp.Body.Close()
						if resp.StatusCode != http.StatusServiceUnavailable || err != nil {
							t.Errorf("%s, %s, HTTP/2 %v: answer = %d with %d bytes, %v, want 503", answer, outside, http2, resp.StatusCode, len(body), err)
						}
					}
				}
			}
			var n int
			if err := db.Write.QueryRow("SELECT count(*) FROM payments").Scan(&n); err != nil || n != 0 {
				t.Errorf("%d payments, %v, want none", n, err)
			}
		})
	}
}

// Over gRPC neither a message nor OK reaches the client.
func TestFailedCommitIsNotToldAsASuccessOverGRPC(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(*testing.T) (*database.DB, string){"SQLite": deferredSQLite, "PostgreSQL": deferredPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, insert := open(t)
			protect, err := idemgrpc.New(joinedEngine(t, db), []idem.Policy{
				{Name: healthpb.Health_Check_FullMethodName, AllowGlobalKeys: true}, {Name: healthpb.Health_Watch_FullMethodName, AllowGlobalKeys: true}})
			if err != nil {
				t.Fatal(err)
			}
			server := grpc.NewServer(grpc.UnaryInterceptor(protect.Unary()), grpc.StreamInterceptor(protect.Stream()))
			healthpb.RegisterHealthServer(server, &payingHealth{t: t, insert: insert})
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- server.Serve(listener) }()
			conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close(); server.Stop(); <-done })
			client := healthpb.NewHealthClient(conn)
			ctx := func() context.Context {
				return metadata.AppendToOutgoingContext(t.Context(), "idempotency-key", driver.NewNonce().String())
			}
			if answer, err := client.Check(ctx(), &healthpb.HealthCheckRequest{}); status.Code(err) != codes.Unavailable {
				t.Errorf("Check() = %v, %v, want UNAVAILABLE", answer, err)
			}
			stream, err := client.Watch(ctx(), &healthpb.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if answer, err := stream.Recv(); status.Code(err) != codes.Unavailable {
				t.Errorf("Recv() = %v, %v, want UNAVAILABLE", answer, err)
			}
			var n int
			if err := db.Write.QueryRow("SELECT count(*) FROM payments").Scan(&n); err != nil || n != 0 {
				t.Errorf("%d payments, %v, want none", n, err)
			}
		})
	}
}

// payingHealth pays in both of its methods, and answers with success.
type payingHealth struct {
	healthpb.UnimplementedHealthServer
	t      *testing.T
	insert string
}

func (s *payingHealth) pay(ctx context.Context) {
	tx, err := sqlstore.Tx(ctx)
	if err == nil {
		_, err = tx.ExecContext(ctx, s.insert)
	}
	if err != nil {
		s.t.Errorf("payment: %v", err)
	}
}

func (s *payingHealth) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	s.pay(ctx)
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

func (s *payingHealth) Watch(_ *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	s.pay(stream.Context())
	for range 3 {
		if err := stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}); err != nil {
			return err
		}
	}
	return nil
}

func plainRoute(engine *idem.Engine, h http.Handler) http.Handler {
	return idemhttp.MustNew(engine, idem.Policy{AllowGlobalKeys: true})(h)
}

// recoveredRoute ends a response whose handler has panicked as if it were whole.
func recoveredRoute(engine *idem.Engine, h http.Handler) http.Handler {
	next := plainRoute(engine, h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { _ = recover() }()
		next.ServeHTTP(w, r)
	})
}

// deferredSQLite returns a database and an INSERT of a payment that only COMMIT refuses.
func deferredSQLite(t *testing.T) (*database.DB, string) {
	t.Helper()
	db, err := database.Open("sqlite:"+filepath.Join(t.TempDir(), "payments.db"), database.Options{Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect); err != nil {
		t.Fatal(err)
	}
	prepareDeferred(t, db, "CREATE TABLE accounts (id INTEGER PRIMARY KEY)",
		"CREATE TABLE payments (account INTEGER REFERENCES accounts (id) DEFERRABLE INITIALLY DEFERRED)")
	return db, "INSERT INTO payments VALUES (1)"
}

func deferredPostgres(t *testing.T) (*database.DB, string) {
	t.Helper()
	_, db := scratch.Database(t, testserver.SharedPostgres(t))
	prepareDeferred(t, db, "CREATE TABLE payments (account INTEGER)",
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'no such account' USING ERRCODE = '23503'; END $$`,
		"CREATE CONSTRAINT TRIGGER known AFTER INSERT ON payments DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()")
	return db, "INSERT INTO payments VALUES (1)"
}

func prepareDeferred(t *testing.T, db *database.DB, statements ...string) {
	t.Helper()
	for _, s := range statements {
		if _, err := db.Write.Exec(s); err != nil {
			t.Fatal(err)
		}
	}
}

func joinedEngine(t *testing.T, db *database.DB) *idem.Engine {
	t.Helper()
	opts := []sqlstore.Option{sqlstore.WithLogger(slog.New(slog.DiscardHandler))}
	if db.Dialect == dialect.SQLite {
		opts = append(opts, sqlstore.WithSoleProcess(), sqlstore.WithReadPool(db.Read))
	}
	store, err := sqlstore.New(t.Context(), db.Write, db.Dialect, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	joined, err := store.Joined()
	if err != nil {
		t.Fatal(err)
	}
	engine, err := idem.NewJoined(joined)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}
