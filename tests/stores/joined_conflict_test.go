package stores

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// TestJoinedConflictRunsOneOfTwoPaymentsAgain has two payments meet in a conflict of the database.
// The handler of one of them runs again, and the client does not notice.
func TestJoinedConflictRunsOneOfTwoPaymentsAgain(t *testing.T) {
	t.Parallel()
	const created, refused = "created", "refused"
	for _, tt := range []struct {
		conflict  string
		server    func(testing.TB) string
		isolation sql.IsolationLevel
		work      func(m *meeting, ctx context.Context, tx *sql.Tx, from, to string) error
		answers   map[string]int
		balances  string
	}{
		{"serialisation failure on PostgreSQL", testserver.SharedPostgres, sql.LevelSerializable, (*meeting).spendBoth,
			map[string]int{created: 1, refused: 1}, "0"},
		{"deadlock on PostgreSQL", testserver.SharedPostgres, sql.LevelDefault, (*meeting).transfer, map[string]int{created: 2}, "100"},
		{"deadlock on MariaDB", testserver.SharedMariaDB, sql.LevelDefault, (*meeting).transfer, map[string]int{created: 2}, "100"},
	} {
		for transport, serve := range map[string]func(*meeting) sender{"net/http": (*meeting).serveHTTP, "gRPC": (*meeting).serveGRPC} {
			t.Run(tt.conflict+" over "+transport, func(t *testing.T) {
				t.Parallel()
				m := newMeeting(t, tt.server(t), tt.isolation)
				m.work = tt.work
				send := serve(m)
				both := func() [2]reply {
					var replies [2]reply
					var sent sync.WaitGroup
					for i, from := range []string{"a", "b"} {
						sent.Go(func() { replies[i] = send("key-"+from, from) })
					}
					sent.Wait()
					return replies
				}
				first := both()
				outcomes := map[string]int{}
				for _, r := range first {
					outcomes[r.outcome]++
					if r.runs != 1 {
						t.Errorf("the answer %+v has the headers of %d runs, want those of one", r, r.runs)
					}
				}
				if fmt.Sprint(outcomes) != fmt.Sprint(tt.answers) {
					t.Errorf("answers = %v, want %v", first, tt.answers)
				}
				if m.conflicts.Load() == 0 || m.runs.Load() < 3 {
					t.Errorf("%d conflicts and %d runs, want a conflict and a third run", m.conflicts.Load(), m.runs.Load())
				}
				if again := both(); again[0].outcome != first[0].outcome || again[1].outcome != first[1].outcome {
					t.Errorf("repeats = %v, want %v", again, first)
				}
				var sum string
				var payments int
				if err := errors.Join(m.db.QueryRow("SELECT sum(n) FROM accounts").Scan(&sum), m.db.QueryRow("SELECT count(*) FROM payments").Scan(&payments)); err != nil {
					t.Fatal(err)
				}
				if sum != tt.balances || payments != tt.answers[created] {
					t.Errorf("balances = %s after %d payments, want %s after %d", sum, payments, tt.balances, tt.answers[created])
				}
			})
		}
	}
}

// sender sends a payment from an account.
type sender func(key, from string) reply

// reply is what a client gets.
type reply struct {
	outcome string // created, refused, or what went wrong
	runs    int    // of whose headers the answer has
}

// meeting is a service with two accounts, on which the first payments of both meet.
type meeting struct {
	testing.TB

	db     *sql.DB
	engine *idem.Engine
	policy idem.Policy
	work   func(m *meeting, ctx context.Context, tx *sql.Tx, from, to string) error

	met             sync.Map // accounts whose payment was at the meeting
	both            sync.WaitGroup
	runs, conflicts atomic.Int64
}

func newMeeting(t testing.TB, server string, isolation sql.IsolationLevel) *meeting {
	t.Helper()
	m := &meeting{TB: t, policy: idem.Policy{AllowGlobalKeys: true}}
	m.both.Add(2)
	_, db := scratch.Database(t, server)
	m.db = db.Write
	for _, statement := range []string{
		"CREATE TABLE accounts (id VARCHAR(8) PRIMARY KEY, n BIGINT NOT NULL)",
		"INSERT INTO accounts VALUES ('a', 50), ('b', 50)",
		"CREATE TABLE payments (op VARCHAR(64) PRIMARY KEY)",
	} {
		if _, err := m.db.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	store, err := sqlstore.New(t.Context(), m.db, db.Dialect, sqlstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	joined, err := store.Joined(sqlstore.WithIsolation(isolation))
	if err != nil {
		t.Fatal(err)
	}
	m.engine, err = idem.NewJoined(joined, idem.WithConflictRetries(5), idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		if ev.Type == telemetry.EventConflict {
			m.conflicts.Add(1)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.engine.Close(context.Background()) })
	return m
}

var errNoFunds = errors.New("no funds")

// pay is the handler of a payment.
func (m *meeting) pay(ctx context.Context, from string) error {
	m.runs.Add(1)
	x, _ := idem.FromContext(ctx)
	tx, err := sqlstore.Tx(ctx)
	if err != nil {
		return err
	}
	if err := m.work(m, ctx, tx, from, map[string]string{"a": "b", "b": "a"}[from]); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO payments VALUES ('%s')", x.OperationID))
	return err
}

// meet waits for the payment of the other account, the first time.
func (m *meeting) meet(from string) {
	if _, again := m.met.LoadOrStore(from, true); !again {
		m.both.Done()
		m.both.Wait()
	}
}

// spendBoth spends 100 of an account if both accounts together have it. The database must not let
// two such payments succeed that have both read 100.
func (m *meeting) spendBoth(ctx context.Context, tx *sql.Tx, from, _ string) error {
	var sum int64
	if err := tx.QueryRowContext(ctx, "SELECT sum(n) FROM accounts").Scan(&sum); err != nil {
		return err
	}
	m.meet(from)
	if sum < 100 {
		return errNoFunds
	}
	_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE accounts SET n = n - 100 WHERE id = '%s'", from))
	return err
}

// transfer moves 10. Two transfers in opposite directions wait for each other.
func (m *meeting) transfer(ctx context.Context, tx *sql.Tx, from, to string) error {
	if _, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE accounts SET n = n - 10 WHERE id = '%s'", from)); err != nil {
		return err
	}
	m.meet(from)
	_, err := tx.ExecContext(ctx, fmt.Sprintf("UPDATE accounts SET n = n + 10 WHERE id = '%s'", to))
	return err
}

// serveHTTP reports the error of the database itself, because net/http has no errors.
func (m *meeting) serveHTTP() sender {
	protect := idemhttp.MustNew(m.engine, m.policy)
	server := httptest.NewServer(protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Location", fmt.Sprint("/runs/", m.runs.Load()))
		switch err := m.pay(r.Context(), r.URL.Query().Get("from")); {
		case errors.Is(err, errNoFunds):
			w.WriteHeader(http.StatusPaymentRequired)
		case err != nil:
			idem.ReportFailure(r.Context(), err)
			http.Error(w, "sorry", http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	})))
	m.Cleanup(server.Close)
	return func(key, from string) reply {
		r, err := http.NewRequest(http.MethodPost, server.URL+"/?from="+from, http.NoBody)
		if err != nil {
			return reply{outcome: err.Error()}
		}
		r.Header.Set("Idempotency-Key", key)
		resp, err := server.Client().Do(r)
		if err != nil {
			return reply{outcome: err.Error()}
		}
		_ = resp.Body.Close()
		outcome := map[int]string{201: "created", 402: "refused"}[resp.StatusCode]
		if outcome == "" {
			outcome = resp.Status
		}
		return reply{outcome, len(resp.Header.Values("Location"))}
	}
}

// fee is what the method adds to the amount of its request.
const fee = 30

// meetingServer returns the error of the database, as gRPC methods do.
type meetingServer struct {
	paymentsv1.UnimplementedPaymentServiceServer

	m *meeting
}

func (s meetingServer) CreatePayment(ctx context.Context, r *paymentsv1.CreatePaymentRequest) (*paymentsv1.Payment, error) {
	if err := grpc.SetHeader(ctx, metadata.Pairs("run", fmt.Sprint(s.m.runs.Load()))); err != nil {
		return nil, err
	}
	r.Amount += fee // a second run must not add it again
	switch err := s.m.pay(ctx, r.GetFrom()); {
	case errors.Is(err, errNoFunds):
		return nil, status.Error(codes.FailedPrecondition, err.Error())
	case err != nil:
		return nil, err
	}
	return &paymentsv1.Payment{Id: "p1", Amount: r.GetAmount()}, nil
}

func (m *meeting) serveGRPC() sender {
	interceptors, err := idemgrpc.New(m.engine, []idem.Policy{m.policy.ForRoute(paymentsv1.PaymentService_CreatePayment_FullMethodName)}, idemgrpc.Config{Replay: []string{"run"}})
	if err != nil {
		m.Fatal(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(interceptors.Unary()))
	paymentsv1.RegisterPaymentServiceServer(server, meetingServer{m: m})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		m.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(ln) })
	m.Cleanup(serving.Wait)
	m.Cleanup(server.Stop)
	conn, err := grpc.NewClient(ln.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { _ = conn.Close() })
	client := paymentsv1.NewPaymentServiceClient(conn)
	return func(key, from string) reply {
		var header metadata.MD
		ctx := metadata.AppendToOutgoingContext(context.Background(), "idempotency-key", key)
		paid, err := client.CreatePayment(ctx, &paymentsv1.CreatePaymentRequest{From: from, Amount: 1000}, grpc.Header(&header))
		outcome := map[codes.Code]string{codes.OK: "created", codes.FailedPrecondition: "refused"}[status.Code(err)]
		if outcome == "" {
			outcome = err.Error()
		}
		if err == nil && paid.GetAmount() != 1000+fee {
			outcome = fmt.Sprint("created with amount ", paid.GetAmount())
		}
		return reply{outcome, len(header.Get("run"))}
	}
}
