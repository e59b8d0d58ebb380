package idemgrpc

import (
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Domain is the domain of every ErrorInfo of this package.
const Domain = "idemkeeper"

// Metadata of the ErrorInfo if the outcome of an operation is in doubt.
const (
	OperationIDKey     = "operation_id"
	MayHaveHappenedKey = "may_have_happened" // "true": a client that takes a new key may pay twice
)

// codeStreamUnsupported refuses a stream of requests that was to be protected. It is the one
// code beside those of package idem.
const codeStreamUnsupported idem.Code = "stream-unsupported"

// pushbackKey is the trailer with the pause before a retry, in milliseconds. A negative
// number forbids the retry (gRFC A6).
const pushbackKey = "grpc-retry-pushback-ms"

// Reason returns a code in the form of an ErrorInfo: "key-reused" is KEY_REUSED.
func Reason(c idem.Code) string { return strings.ToUpper(strings.ReplaceAll(string(c), "-", "_")) }

// RefusalStatus returns the status of a refusal, with an ErrorInfo, and with a RetryInfo
// if the call is worth sending again. The client does not see r.Err.
func RefusalStatus(r *idem.Refusal) *status.Status {
	s := status.New(codes.Code(r.Code.GRPCCode()), r.Code.Title()+": "+r.Detail())
	if r.Code == codeStreamUnsupported {
		s = status.New(codes.Unimplemented,
			"Idempotency-Key is not supported here: this method streams requests and cannot be made safe to retry; send it without a key.")
	}
	info := &errdetails.ErrorInfo{Reason: Reason(r.Code), Domain: Domain}
	if r.OperationID != "" {
		info.Metadata = map[string]string{OperationIDKey: r.OperationID}
		if r.MayHaveHappened {
			info.Metadata[MayHaveHappenedKey] = "true"
		}
	}
	details := []protoadapt.MessageV1{info}
	if r.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(r.RetryAfter)})
	}
	if detailed, err := s.WithDetails(details...); err == nil { // text and numbers always marshal
		return detailed
	}
	return s
}

// retryDelay returns the pause that the status of an error asks for, and false without one.
func retryDelay(err error) (time.Duration, bool) {
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return min(max(info.GetRetryDelay().AsDuration(), 0), maxAsked), true
		}
	}
	return 0, false
}

// pushback returns the trailer of a refusal.
func pushback(retryAfter time.Duration) metadata.MD {
	ms := int64(-1)
	if retryAfter > 0 {
		ms = (retryAfter + time.Millisecond - 1).Milliseconds()
	}
	return metadata.Pairs(pushbackKey, strconv.FormatInt(ms, 10))
}

// CodeOf returns the code of a refusal at the client, and false for every other error.
func CodeOf(err error) (idem.Code, bool) {
	info := infoOf(err)
	if info == nil {
		return "", false
	}
	return idem.Code(strings.ToLower(strings.ReplaceAll(info.GetReason(), "_", "-"))), true
}

// infoOf returns the ErrorInfo of a server with these interceptors, or nil.
func infoOf(err error) *errdetails.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, _ := d.(*errdetails.ErrorInfo); info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}
