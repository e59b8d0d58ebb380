package rpc

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/idem"
)

// recover answers for a handler that panicked. The engine has already settled the
// attempt as in doubt.
func (s *Server) recover(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
	defer s.panicked(ctx, info.FullMethod, &err)
	return next(ctx, req)
}

func (s *Server) recoverStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer s.panicked(ss.Context(), info.FullMethod, &err)
	return next(srv, ss)
}

// panicked must be deferred, because it recovers.
func (s *Server) panicked(ctx context.Context, method string, err *error) {
	if r := recover(); r != nil {
		s.cfg.Log.LogAttrs(ctx, slog.LevelError, "panic", slog.String("method", method),
			slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		*err = status.Error(codes.Internal, "The outcome is not known. Send the request again with the same key.")
	}
}

// authenticate refuses calls without a known API key, and puts the merchant into the
// context of all others.
func (s *Server) authenticate(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	ctx, err := s.authenticated(ctx, info.FullMethod)
	if err != nil {
		return nil, err
	}
	return next(ctx, req)
}

func (s *Server) authenticateStream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	ctx, err := s.authenticated(ss.Context(), info.FullMethod)
	if err != nil {
		return err
	}
	return next(srv, &streamWith{ss, ctx})
}

func (s *Server) authenticated(ctx context.Context, method string) (context.Context, error) {
	if isOpen(method) {
		return ctx, nil
	}
	merchant, ok := s.cfg.Keys.Merchant(metadata.ValueFromIncomingContext(ctx, "authorization"))
	if !ok {
		return nil, refusal(codeUnauthorized, "Send authorization: Bearer and a known API key.")
	}
	return payments.WithMerchant(ctx, merchant), nil
}

// isOpen reports whether a method needs no API key. Probes and tools have no key.
func isOpen(method string) bool {
	return strings.HasPrefix(method, "/grpc.health.v1.") || strings.HasPrefix(method, "/grpc.reflection.")
}

// streamWith is a stream with a context of its own.
type streamWith struct {
	grpc.ServerStream

	ctx context.Context
}

// Context implements [grpc.ServerStream].
func (s *streamWith) Context() context.Context { return s.ctx }

// validate checks an order before the idempotency interceptor sees the call. No
// stream moves money.
func (s *Server) validate(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if order, ok := req.(orderRequest); ok {
		if code, detail := invalid(order); code != "" {
			s.cfg.Engine.ReportRefused(ctx, info.FullMethod, idem.NewRefusal(code, nil))
			return nil, refusal(code, detail)
		}
	}
	return next(ctx, req)
}

// invalid returns the reason to refuse an order, or "".
func invalid(req orderRequest) (code idem.Code, detail string) {
	if proto.Size(req) > idem.DefaultMaxRequestBody {
		return idem.CodeBodyTooLarge, idem.CodeBodyTooLarge.Detail()
	}
	if len(req.ProtoReflect().GetUnknown()) > 0 {
		return idem.CodeBodyInvalid, "the request holds an unknown field"
	}
	err := orderOf(req).Validate()
	if err == nil {
		return "", ""
	}
	if why, ok := errors.AsType[*payments.Error](err); ok {
		return idem.Code(why.Code), why.Detail
	}
	return idem.CodeBodyInvalid, idem.CodeBodyInvalid.Detail()
}

type operationKey struct{}

// logAnswered logs the last step of a payment at debug level. [payments.Service]
// logs the steps before. A replay has no op.
func (s *Server) logAnswered(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	if _, ok := req.(orderRequest); !ok {
		return next(ctx, req)
	}
	var op string
	res, err := next(context.WithValue(ctx, operationKey{}, &op), req)
	payment, _ := res.(*paymentsv1.Payment)
	s.cfg.Log.LogAttrs(ctx, slog.LevelDebug, "payment", slog.String("at", "answered"),
		slog.String("op", op), slog.String("status", status.Code(err).String()), slog.String("payment", payment.GetId()))
	return res, err
}

// noteOperation hands the operation ID to logAnswered.
func noteOperation(ctx context.Context) {
	x, running := idem.FromContext(ctx)
	if op, ok := ctx.Value(operationKey{}).(*string); ok && running {
		*op = x.OperationID
	}
}

var errStopping = status.Error(codes.Unavailable, "The server is stopping.")

// untilStopping ends streams of requests when the server stops. A tool with an open
// reflection stream would otherwise keep the server alive.
func (s *Server) untilStopping(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !info.IsClientStream {
		return next(srv, ss)
	}
	return next(srv, &impatient{ss, s.stopping})
}

// impatient is a stream whose RecvMsg returns when the server stops.
type impatient struct {
	grpc.ServerStream

	stopping <-chan struct{}
}

// RecvMsg implements [grpc.ServerStream]. After errStopping m must not be read. The
// goroutine that fills it ends with the stream.
func (s *impatient) RecvMsg(m any) error {
	received := make(chan error, 1)
	go func() { received <- s.ServerStream.RecvMsg(m) }()
	select {
	case err := <-received:
		return err
	case <-s.stopping:
		return errStopping
	}
}
