package idemconnect_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemconnect"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

const procedure = "/payments.v1.PaymentService/CreatePayment"

type server struct {
	protect *idemgrpc.Interceptors
	runs    atomic.Int64
}

func newServer(engine *idem.Engine, merchant idem.ScopeFunc) (*server, error) {
	protect, err := idemgrpc.New(engine, []idem.Policy{{Name: procedure, Scope: merchant, InDoubt: idem.LeaveUnknown()}})
	if err != nil {
		return nil, err
	}
	return &server{protect: protect}, nil
}

// CreatePayment is the method of the service.
func (s *server) CreatePayment(ctx context.Context, req *connect.Request[paymentsv1.CreatePaymentRequest]) (*connect.Response[paymentsv1.Payment], error) {
	return idemconnect.Unary(ctx, s.protect, req, s.pay)
}

// pay is what the method was before.
func (s *server) pay(ctx context.Context, req *connect.Request[paymentsv1.CreatePaymentRequest]) (*connect.Response[paymentsv1.Payment], error) {
	s.runs.Add(1)
	switch req.Msg.GetTo() {
	case "nobody":
		failure := connect.NewError(connect.CodeFailedPrecondition, errors.New("insufficient funds"))
		detail, err := connect.NewErrorDetail(&errdetails.ErrorInfo{Reason: "FUNDS", Domain: "payments"})
		if err != nil {
			return nil, err
		}
		failure.AddDetail(detail)
		return nil, failure
	case "broken":
		return nil, errors.New("the bank gave no answer")
	}
	if _, err := idem.CheckOwner(ctx); err != nil {
		return nil, connect.NewError(connect.CodeUnavailable, err)
	}
	res := connect.NewResponse(&paymentsv1.Payment{Id: "pay_1", Amount: req.Msg.GetAmount()})
	res.Header().Set("X-Own", "kept")
	return res, nil
}

// The same calls get the same answers over Connect, gRPC and gRPC-Web, and share their keys.
func TestUnary(t *testing.T) {
	t.Parallel()
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	s, err := newServer(engine, func(context.Context) (string, error) { return "merchant_demo", nil })
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle(procedure, connect.NewUnaryHandler(procedure, s.CreatePayment))
	service := httptest.NewUnstartedServer(mux)
	service.EnableHTTP2 = true
	service.StartTLS()
	defer service.Close()
	for i, protocol := range []struct {
		name    string
		options []connect.ClientOption
	}{
		{"Connect", nil},
		{"Connect with JSON", []connect.ClientOption{connect.WithProtoJSON()}},
		{"gRPC", []connect.ClientOption{connect.WithGRPC()}},
		{"gRPC-Web", []connect.ClientOption{connect.WithGRPCWeb()}},
	} {
		pays := connect.NewClient[paymentsv1.CreatePaymentRequest, paymentsv1.Payment](service.Client(), service.URL+procedure, protocol.options...)
		for _, tt := range []struct {
			key, to string
			amount  int64
			code    connect.Code // 0 for a payment
			reason  string
			runs    int64 // of the first protocol
		}{
			{"paid", "bob", 100, 0, "", 1},
			{"paid", "bob", 100, 0, "", 0},
			{"paid", "bob", 999, connect.CodeFailedPrecondition, "KEY_REUSED", 0},
			{"refused", "nobody", 100, connect.CodeFailedPrecondition, "FUNDS", 1},
			{"refused", "nobody", 100, connect.CodeFailedPrecondition, "FUNDS", 0},
			{"doubt", "broken", 100, connect.CodeUnknown, "", 1}, // live, once
			{"doubt", "broken", 100, connect.CodeFailedPrecondition, "OUTCOME_UNKNOWN", 0},
			{"", "bob", 100, connect.CodeInvalidArgument, "KEY_MISSING", 0},
		} {
			if i > 0 && tt.code == connect.CodeUnknown {
				tt.code, tt.reason = connect.CodeFailedPrecondition, "OUTCOME_UNKNOWN"
			}
			before := s.runs.Load()
			req := connect.NewRequest(&paymentsv1.CreatePaymentRequest{To: tt.to, Amount: tt.amount})
			if tt.key != "" {
				req.Header().Set(idemconnect.KeyHeader, tt.key)
			}
			res, err := pays.CallUnary(t.Context(), req)
			ran := s.runs.Load() - before
			replayed := ran == 0 && !slices.Contains([]string{"KEY_REUSED", "KEY_MISSING", "OUTCOME_UNKNOWN"}, tt.reason)
			if want := tt.runs; i == 0 && ran != want || i > 0 && ran != 0 {
				t.Errorf("%s: key %q ran %d times", protocol.name, tt.key, ran)
			}
			if tt.code == 0 {
				if err != nil || res.Msg.GetId() != "pay_1" || (res.Header().Get("Idempotent-Replayed") == "true") != replayed || (res.Header().Get("X-Own") == "kept") == replayed {
					t.Errorf("%s: key %q = %v, %v, want the payment, replayed %v", protocol.name, tt.key, res, err, replayed)
				}
				continue
			}
			failure, ok := errors.AsType[*connect.Error](err)
			if !ok || failure.Code() != tt.code || reasonOf(t, failure) != tt.reason || (failure.Meta().Get("Idempotent-Replayed") == "true") != replayed {
				t.Errorf("%s: key %q = %v (%v), want %v %s, replayed %v", protocol.name, tt.key, err, failure.Meta(), tt.code, tt.reason, replayed)
			}
		}
	}
}

func reasonOf(t *testing.T, failure *connect.Error) string {
	t.Helper()
	for _, d := range failure.Details() {
		value, err := d.Value()
		if err != nil {
			t.Error(err)
		}
		if info, ok := value.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	return ""
}
