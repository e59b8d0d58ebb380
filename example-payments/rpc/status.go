package rpc

import (
	"context"
	"errors"
	"log/slog"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// Domain is the ErrorInfo domain of the sample's own codes.
const Domain = "payments.v1"

// Codes of the server. The domain and the engine have codes of their own.
const (
	codeUnauthorized idem.Code = "unauthorized"
	codeQueryInvalid idem.Code = "query-invalid"
)

// kinds maps the sample's codes to those of gRPC. All other codes belong to the
// engine, including body-invalid.
var kinds = map[idem.Code]codes.Code{
	idem.Code(payments.CodeCurrencyMismatch):  codes.InvalidArgument,
	idem.Code(payments.CodeInsufficientFunds): codes.FailedPrecondition,
	idem.Code(payments.CodeAccountUnknown):    codes.NotFound,
	idem.Code(payments.CodePaymentUnknown):    codes.NotFound,
	idem.Code(payments.CodeLedgerUnavailable): codes.Unavailable,
	codeUnauthorized:                          codes.Unauthenticated,
	codeQueryInvalid:                          codes.InvalidArgument,
}

// refusal is the status of a code. UNAVAILABLE tells the client when to retry.
func refusal(code idem.Code, detail string) error {
	kind, own := kinds[code]
	info := &errdetails.ErrorInfo{Reason: idemgrpc.Reason(code), Domain: Domain}
	if !own {
		kind, info.Domain = codes.Code(code.GRPCCode()), idemgrpc.Domain
	}
	details := []protoadapt.MessageV1{info}
	if kind == codes.Unavailable {
		details = append(details, &errdetails.RetryInfo{RetryDelay: &durationpb.Duration{Seconds: 1}})
	}
	s := status.New(kind, detail)
	if detailed, err := s.WithDetails(details...); err == nil { // text and numbers always marshal
		s = detailed
	}
	return s.Err()
}

// fail turns an error into a status. A domain error goes to the client as it is. All
// other errors are logged here, and the client gets the code of [payments.CodeOf].
func (s *Server) fail(ctx context.Context, err error) error {
	if domain, ok := errors.AsType[*payments.Error](err); ok {
		return refusal(idem.Code(domain.Code), domain.Detail)
	}
	if r, ok := errors.AsType[*idem.Refusal](err); ok {
		return idemgrpc.RefusalStatus(r).Err()
	}
	code, detail := payments.CodeOf(ctx, err)
	method := "unknown"
	if m, ok := grpc.Method(ctx); ok {
		method = m
	}
	s.cfg.Log.LogAttrs(ctx, slog.LevelWarn, "call failed",
		slog.String("method", method), slog.String("code", string(code)), slog.Any("err", err))
	return refusal(code, detail)
}
