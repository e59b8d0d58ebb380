package rpc_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/idemkeeper/idemkeeper/example-payments/rpc"
)

const serviceName = "payments.v1.PaymentService"

func (f *fixture) wantHealth(service string, want healthv1.HealthCheckResponse_ServingStatus) {
	f.t.Helper()
	got, err := healthv1.NewHealthClient(f.conn).Check(f.t.Context(), &healthv1.HealthCheckRequest{Service: service})
	if err != nil || got.GetStatus() != want {
		f.t.Errorf("health of %q: %v, %v, want %v", service, got, err, want)
	}
}

// Health wants no API key, and asks whenever it is asked.
func TestHealth(t *testing.T) {
	f := setup(t)
	f.wantHealth("", healthv1.HealthCheckResponse_SERVING)
	f.wantHealth(serviceName, healthv1.HealthCheckResponse_SERVING)
	client := healthv1.NewHealthClient(f.conn)
	_, err := client.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "x"})
	wantStatus(t, "health of another service", err, codes.NotFound, "")

	f.ledger.ping = func(context.Context) error { return errors.New("gone") }
	f.wantHealth("", healthv1.HealthCheckResponse_NOT_SERVING)
	f.ledger.ping = nil
	if list, err := client.List(t.Context(), &healthv1.HealthListRequest{}); err != nil || list.GetStatuses()[serviceName].GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Errorf("List: %v, %v, want SERVING", list, err)
	}
}

func reflection(t *testing.T, f *fixture) (reflectionv1.ServerReflection_ServerReflectionInfoClient, []string) {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(f.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	list, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range list.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	return stream, names
}

func TestReflectionListsTheService(t *testing.T) {
	f := setup(t)
	_, names := reflection(t, f)
	if !slices.Contains(names, serviceName) {
		t.Errorf("services %v, want %s among them", names, serviceName)
	}
}

// When the server stops, a watcher of its health is told, reflection is ended, and a
// running payment is finished.
func TestShutdown(t *testing.T) {
	reached, open := make(chan struct{}), make(chan struct{})
	f := setup(t, func(f *fixture, _ *rpc.Config) {
		f.ledger.before = func(context.Context) error {
			close(reached)
			<-open
			return nil
		}
	})
	watch, err := healthv1.NewHealthClient(f.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := watch.Recv(); err != nil || st.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		t.Fatalf("watch: %v, %v, want SERVING", st, err)
	}
	stream, _ := reflection(t, f)
	paid := make(chan answer, 1)
	go func() { paid <- f.pay("k", order()) }()
	<-reached

	hurry, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := f.server.Shutdown(hurry); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Shutdown() while a payment runs = %v, want that the time is over", err)
	}
	if st, err := watch.Recv(); err != nil || st.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("watch: %v, %v, want NOT_SERVING", st, err)
	}
	_, err = watch.Recv()
	wantStatus(t, "watch", err, codes.Unavailable, "")
	_, err = stream.Recv()
	wantStatus(t, "reflection", err, codes.Unavailable, "")
	close(open)
	wantStatus(t, "payment that ran", (<-paid).err, codes.OK, "")
	if err := f.server.Shutdown(t.Context()); err != nil {
		t.Errorf("Shutdown() = %v, want nil", err)
	}
}
