package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
)

// watchEvery is how often the status is looked up for a watcher.
const watchEvery = time.Second

// health tells whether a payment would be served now, as /readyz does. All checks and watchers
// share the answers. The whole server ("") and PaymentService have the same status.
type health struct {
	healthv1.UnimplementedHealthServer

	server *Server
	ready  *payments.Readiness
}

// Check implements [healthv1.HealthServer].
func (h *health) Check(ctx context.Context, req *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	st := h.status(ctx, req.GetService())
	if st == healthv1.HealthCheckResponse_SERVICE_UNKNOWN {
		return nil, status.Error(codes.NotFound, "There is no such service.")
	}
	return &healthv1.HealthCheckResponse{Status: st}, nil
}

// List implements [healthv1.HealthServer].
func (h *health) List(ctx context.Context, _ *healthv1.HealthListRequest) (*healthv1.HealthListResponse, error) {
	now := &healthv1.HealthCheckResponse{Status: h.status(ctx, "")}
	return &healthv1.HealthListResponse{Statuses: map[string]*healthv1.HealthCheckResponse{
		"": now, paymentsv1.PaymentService_ServiceDesc.ServiceName: now,
	}}, nil
}

// Watch implements [healthv1.HealthServer]. It ends when the server stops.
func (h *health) Watch(req *healthv1.HealthCheckRequest, stream grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	last := healthv1.HealthCheckResponse_UNKNOWN
	tell := func() error {
		st := h.status(stream.Context(), req.GetService())
		if st == last {
			return nil
		}
		last = st
		return stream.Send(&healthv1.HealthCheckResponse{Status: st})
	}
	for {
		if err := tell(); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-stream.Context().Done():
			return status.FromContextError(stream.Context().Err()).Err()
		case <-h.server.stopping:
			_ = tell() // it ends anyway
			return errStopping
		}
	}
}

func (h *health) status(ctx context.Context, service string) healthv1.HealthCheckResponse_ServingStatus {
	if service != "" && service != paymentsv1.PaymentService_ServiceDesc.ServiceName {
		return healthv1.HealthCheckResponse_SERVICE_UNKNOWN
	}
	select {
	case <-h.server.stopping:
		return healthv1.HealthCheckResponse_NOT_SERVING
	default:
	}
	if err := h.ready.Check(ctx); err != nil {
		h.server.cfg.Log.WarnContext(ctx, "not ready", "err", err)
		return healthv1.HealthCheckResponse_NOT_SERVING
	}
	return healthv1.HealthCheckResponse_SERVING
}
