package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverdatabasesql"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"

	"github.com/idemkeeper/idemkeeper/examples/sql/internal/paytest"
)

// Steps of a job at which a test kills the process.
const (
	begun     = "the job begins"
	delivered = "the job is delivered" // and its completion is not stored
)

func openPgx(ctx context.Context, s *paytest.Setting) (paytest.Pay, error) {
	pool, err := s.Pgx(ctx)
	if err != nil {
		return nil, err
	}
	jobs, err := newClient[pgx.Tx](ctx, riverpgxv5.New(pool), s)
	return func(ctx context.Context, p paytest.Payment) (int64, error) { return Pay(ctx, jobs, p.Payer, p.Amount) }, err
}

func openSQL(ctx context.Context, s *paytest.Setting) (paytest.Pay, error) {
	db, err := s.SQL(ctx)
	if err != nil {
		return nil, err
	}
	jobs, err := newClient[*sql.Tx](ctx, riverdatabasesql.New(db), s)
	return func(ctx context.Context, p paytest.Payment) (int64, error) {
		return PaySQL(ctx, jobs, p.Payer, p.Amount)
	}, err
}

// newClient returns a client of River, which works jobs if there is a receiver.
func newClient[Tx any](ctx context.Context, driver riverdriver.Driver[Tx], s *paytest.Setting) (*river.Client[Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, &Teller{Client: http.DefaultClient, Receiver: s.Receiver})
	cfg := &river.Config{Workers: workers, Logger: slog.New(slog.DiscardHandler)}
	if s.Receiver == "" {
		return river.NewClient(driver, cfg)
	}
	cfg.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}}
	cfg.JobTimeout, cfg.RescueStuckJobsAfter = 5*time.Second, 5*time.Second
	cfg.Hooks = []rivertype.Hook{
		river.HookWorkBeginFunc(func(context.Context, *rivertype.JobRow) error { s.Reach(begun); return nil }),
		river.HookWorkEndFunc(func(_ context.Context, _ *rivertype.JobRow, err error) error {
			if err == nil {
				s.Reach(delivered)
			}
			return err
		}),
	}
	jobs, err := river.NewClient(driver, cfg)
	if err != nil {
		return nil, err
	}
	return jobs, jobs.Start(ctx)
}

var drivers = map[string]paytest.Open{"riverpgxv5": openPgx, "riverdatabasesql": openSQL}

func TestMain(m *testing.M) { paytest.Main(m, drivers) }

// tables makes River's tables.
func tables(ctx context.Context, pool *pgxpool.Pool) error {
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	return err
}

func TestPaymentsWithAnOutbox(t *testing.T) {
	for name, open := range drivers {
		t.Run(name, func(t *testing.T) { paytest.Run(t, name, open, tables) })
	}
}

// receiver is the other system. It notes every delivery.
type receiver struct {
	mu  sync.Mutex
	got map[string]int // deliveries of each operation ID
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	var job Paid
	if err := json.NewDecoder(req.Body).Decode(&job); err != nil || job.OperationID != req.Header.Get("Idempotency-Key") {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got[job.OperationID]++
}

func (r *receiver) deliveries() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.got)
}

// TestKilledServiceTellsOfItsPayment kills the service at each step of a payment and of its job.
func TestKilledServiceTellsOfItsPayment(t *testing.T) {
	for driver, open := range drivers {
		for _, tt := range []struct {
			step      string
			payments  int // that the killed process leaves, each with its job
			delivered int // by the killed process, at least
		}{
			{paytest.Written, 0, 0},
			{paytest.Committed, 1, 0},
			{begun, 1, 0},
			{delivered, 1, 1},
		} {
			t.Run(driver+", "+tt.step, func(t *testing.T) {
				t.Parallel()
				s := paytest.Setup(t, driver, open, tables)
				r := &receiver{got: map[string]int{}}
				server := httptest.NewServer(r)
				t.Cleanup(server.Close)
				s.Receiver(server.URL)

				p := s.Start(tt.step)
				first := make(chan paytest.Answer, 1)
				go func() { first <- p.Pay("k1", 100) }()
				p.WaitAt(tt.step)
				p.Kill()
				<-first // the answer, or a connection that broke
				if payments, jobs := count(s, "payments"), count(s, "river_job"); payments != tt.payments || jobs != tt.payments {
					t.Fatalf("the killed process left %d payments and %d jobs, want %d of each", payments, jobs, tt.payments)
				}
				if got := len(r.deliveries()); got < tt.delivered || got > tt.payments {
					t.Fatalf("the killed process told of %d payments, want at least %d and at most those that it left", got, tt.delivered)
				}

				// The client retries with another instance, which also takes over the job.
				s.Want(s.Start("").Pay("k1", 100), 201, tt.payments == 1)
				s.WantPayments(100)
				s.Eventually("the job is completed", func() bool { return count(s, "river_job WHERE state = 'completed'") == 1 })
				var id string
				if err := s.Pool.QueryRow(t.Context(), "SELECT id FROM payments").Scan(&id); err != nil {
					t.Fatal(err)
				}
				if got := r.deliveries(); len(got) != 1 || got[id] < 1+tt.delivered {
					t.Errorf("deliveries = %v, want %d or more of %s alone", got, 1+tt.delivered, id)
				}
			})
		}
	}
}

func count(s *paytest.Suite, from string) (n int) {
	s.Helper()
	if err := s.Pool.QueryRow(context.Background(), "SELECT count(*) FROM "+from).Scan(&n); err != nil {
		s.Fatal(err)
	}
	return n
}
