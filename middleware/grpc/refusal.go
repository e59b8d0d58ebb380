package idemgrpc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Domain is that of every ErrorInfo made here.
const Domain = "idemkeeper"

// codeStreamUnsupported is why a stream of requests that carries a key is
// refused. It is the one code beside those of package idem.
const codeStreamUnsupported idem.Code = "stream-unsupported"

// pushbackKey tells clients in the trailer when to retry, in milliseconds, or
// with a negative number not to (gRFC A6).
const pushbackKey = "grpc-retry-pushback-ms"

// Reason is a code as an ErrorInfo carries it: "key-reused" is KEY_REUSED.
func Reason(c idem.Code) string { return strings.ToUpper(strings.ReplaceAll(string(c), "-", "_")) }

// RefusalStatus is the status of a refusal, with ErrorInfo and, where it is
// worth sending again, RetryInfo. Nothing of r.Err is in it.
func RefusalStatus(r *idem.Refusal) *status.Status {
	s := status.New(codes.Code(r.Code.GRPCCode()), r.Code.Title()+": "+r.Detail())
	return withInfo(s, Reason(r.Code), r.RetryAfter)
}

// CodeOf returns the code of a refusal as a client received it, and false for
// every other error.
func CodeOf(err error) (idem.Code, bool) {
	info := infoOf(err)
	if info == nil {
		return "", false
	}
	return idem.Code(strings.ToLower(strings.ReplaceAll(info.GetReason(), "_", "-"))), true
}

// infoOf returns the ErrorInfo that a server with these interceptors sent.
func infoOf(err error) *errdetails.ErrorInfo {
	s, ok := status.FromError(err)
	if !ok || s == nil {
		return nil
	}
	for _, d := range s.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok && info.GetDomain() == Domain {
			return info
		}
	}
	return nil
}

// errRelayed is the error of a handler that answered with a refusal: of a service
// that it has called, or of interceptors inside. That says nothing about the
// outcome of this handler's operation, whatever its code: it is in doubt, and the
// answer is not kept.
var errRelayed = errors.New("the handler answered with a refusal")

// relayed returns errRelayed where a handler's error is a refusal.
func relayed(err error) error {
	if info := infoOf(err); info.GetReason() != "" {
		return fmt.Errorf("%w: %s", errRelayed, info.GetReason())
	}
	return nil
}

// isRelayed reports whether the engine has given the handler's error back. A
// refusal that has it as its cause is the engine's own.
func isRelayed(err error) bool {
	_, refused := errors.AsType[*idem.Refusal](err)
	return !refused && errors.Is(err, errRelayed)
}

var errStreamUnsupported = errors.New("a stream of requests carries a key")

func streamUnsupported() *status.Status {
	s := status.New(codes.Unimplemented,
		"Idempotency-Key is not supported here: this method streams requests and cannot be made safe to retry; send it without a key.")
	return withInfo(s, Reason(codeStreamUnsupported), 0)
}

func withInfo(s *status.Status, reason string, retryAfter time.Duration) *status.Status {
	info := &errdetails.ErrorInfo{Reason: reason, Domain: Domain}
	var detailed *status.Status
	var err error
	if retryAfter > 0 {
		detailed, err = s.WithDetails(info, &errdetails.RetryInfo{RetryDelay: durationpb.New(retryAfter)})
	} else {
		detailed, err = s.WithDetails(info)
	}
	if err != nil { // text and numbers always marshal
		return s
	}
	return detailed
}

// pushback is the trailer of a refusal.
func pushback(retryAfter time.Duration) metadata.MD {
	ms := int64(-1)
	if retryAfter > 0 {
		ms = (retryAfter + time.Millisecond - 1).Milliseconds()
	}
	return metadata.MD{pushbackKey: {strconv.FormatInt(ms, 10)}}
}
