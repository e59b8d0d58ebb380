package crashgrpc

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemkeeper/idemkeeper/crashtest"
)

// bank counts calls, by a key in the place of the service's name.
type bank struct {
	healthpb.UnimplementedHealthServer
	mu    sync.Mutex
	calls map[string]int
}

func (b *bank) Check(_ context.Context, req *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls[req.GetService()]++
	return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, nil
}

// The first process that gets a key calls the bank, and answers as the bank does. After a lost answer it never calls again.
func TestCallsArePoints(t *testing.T) {
	t.Parallel()
	b := &bank{calls: map[string]int{}}
	report := crashtest.Find(t, crashtest.Subject{
		Setup: func(tb testing.TB) map[string]string {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				tb.Fatal(err)
			}
			server := grpc.NewServer()
			healthpb.RegisterHealthServer(server, b)
			go func() { _ = server.Serve(l) }()
			tb.Cleanup(server.Stop)
			return map[string]string{"bank": l.Addr().String()}
		},
		Serve: func(_ context.Context, env *crashtest.Env) error {
			conn, err := grpc.NewClient(env.Setting("bank"), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUnaryInterceptor(UnaryClient(env)))
			if err != nil {
				return err
			}
			l, err := env.Listen()
			if err != nil {
				return err
			}
			answered := map[string]bool{}
			return http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				key := r.FormValue("key")
				if answered[key] {
					return
				}
				if _, err := healthpb.NewHealthClient(conn).Check(r.Context(), &healthpb.HealthCheckRequest{Service: key}); status.Code(err) != codes.OK {
					w.WriteHeader(http.StatusBadGateway)
					return
				}
				answered[key] = true
			}))
		},
		Request: func(ctx context.Context, c crashtest.Call) (crashtest.Answer, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL("/?key="+c.Key), nil)
			if err != nil {
				return crashtest.Answer{}, err
			}
			return crashtest.Send(req)
		},
		Effects: func(_ context.Context, key string) (int, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.calls[key], nil
		},
		OneInstance: true,
		Faults:      []crashtest.Fault{crashtest.ConnectionCut, crashtest.AnswerLost},
	})
	if len(report.Points) != 1 || report.Points[0].Name != "/grpc.health.v1.Health/Check" || len(report.Cases) != 3 {
		t.Fatalf("points %v and %d cases, want one call of the bank, and three cases", report.Points, len(report.Cases))
	}
	for _, c := range report.Cases {
		if lost := c.Fault == crashtest.AnswerLost; (c.Cell == "2 EFFECTS") != lost {
			t.Errorf("%s: %s %s, want a second call after a lost answer alone", c.Fault, c.Cell, c.Why)
		}
	}
}

func TestStatusSaysTheOutcome(t *testing.T) {
	t.Parallel()
	doubt, err := status.New(codes.FailedPrecondition, "unknown").WithDetails(&errdetails.ErrorInfo{Reason: "OUTCOME_UNKNOWN"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err  error
		want crashtest.Outcome
	}{
		{nil, crashtest.Success},
		{status.Error(codes.Unavailable, ""), crashtest.Again},
		{status.Error(codes.Aborted, ""), crashtest.Again},
		{errors.New("no status"), crashtest.Again},
		{status.Error(codes.InvalidArgument, ""), crashtest.Refusal},
		{doubt.Err(), crashtest.InDoubt},
	} {
		if a, err := Answer(&healthpb.HealthCheckResponse{}, c.err); err != nil || a.Outcome != c.want {
			t.Errorf("%v: %v, %v, want %v", c.err, a.Outcome, err, c.want)
		}
	}
	later, err := status.New(codes.Aborted, "unknown").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)})
	if err != nil {
		t.Fatal(err)
	}
	if a, _ := Answer(nil, later.Err()); a.Header.Get("Retry-After") != "2" {
		t.Errorf("RetryInfo of 1.5 s: %v, want Retry-After 2", a.Header)
	}
}
