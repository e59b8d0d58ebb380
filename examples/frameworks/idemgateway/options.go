// Package idemgateway gives the HTTP clients of grpc-gateway the keys, the marker and the refusals
// of package idemgrpc as package idemhttp has them. It is an example to copy. The service behind the
// gateway has the interceptors of package idemgrpc.
//
//	mux := runtime.NewServeMux(idemgateway.Options()...)
//	err := paymentsv1.RegisterPaymentServiceHandler(ctx, mux, conn)
//
// Register with a connection. RegisterPaymentServiceHandlerServer calls the methods without
// interceptors, so their keys are ignored. The connection must not have the client interceptor of
// package idemgrpc, because that makes a new key for each request that brings none.
//
// Server streams are not covered. The gateway writes their errors by its own table, or into a body
// that has begun with 200, and either looks like a final answer.
//
// If the service has no interceptors, put package idemhttp in front of the gateway and use
// [WriteError] alone. The client interceptor then belongs into the connection. It tells the engine
// that something may have happened from the first call on, so an answer such as 429, which gRPC also
// gives for a response that is too large, does not give the key back. Without repeats of its own
// (without [idemgrpc.WithKeysHonoured]) it is safe for services that ignore keys.
//
//	mux := runtime.NewServeMux(runtime.WithErrorHandler(idemgateway.WriteError))
//	http.Handle("/", idemhttp.MustNew(engine, policy)(mux))
package idemgateway

import (
	"context"
	"net/http"
	"strings"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// KeyHeader is the request header with the key.
const KeyHeader = "Idempotency-Key"

// Options are for the mux of the gateway.
func Options() []runtime.ServeMuxOption {
	return []runtime.ServeMuxOption{
		runtime.WithIncomingHeaderMatcher(incoming),
		runtime.WithOutgoingHeaderMatcher(outgoing),
		runtime.WithErrorHandler(WriteError),
	}
}

// incoming hands the key on, which the gateway's own matcher drops. Every value goes on, so the
// service sees a request with two keys for what it is.
func incoming(header string) (string, bool) {
	if http.CanonicalHeaderKey(header) == KeyHeader {
		return idemgrpc.DefaultMetadataKey, true
	}
	return runtime.DefaultHeaderMatcher(header)
}

// outgoing gives the marker the name that clients look for, without the gateway's prefix.
func outgoing(name string) (string, bool) {
	if name == idemgrpc.ReplayedMetadataKey {
		return exchange.ReplayedHeader, true
	}
	return runtime.MetadataHeaderPrefix + name, true
}

// WriteError is an error handler that writes the refusals of package idemgrpc as package idemhttp
// does. The gateway's own table has 400 for an unknown outcome, and a client that reads 400 as a
// final answer pays again with a new key.
//
// The outcome of a method that ends with CANCELLED or ABORTED is in doubt. The gateway's table makes
// 499 and 409 of them, which are final too, so a request with a key gets 500 instead.
func WriteError(ctx context.Context, mux *runtime.ServeMux, m runtime.Marshaler, w http.ResponseWriter, r *http.Request, err error) {
	if refusal := refusalOf(err); refusal != nil {
		exchange.WriteRefusal(w, refusal, "")
		return
	}
	if code := status.Code(err); r.Header.Get(KeyHeader) != "" && (code == codes.Canceled || code == codes.Aborted) {
		err = &runtime.HTTPStatusError{HTTPStatus: http.StatusInternalServerError, Err: err}
	}
	runtime.DefaultHTTPErrorHandler(ctx, mux, m, w, r, err)
}

// refusalOf makes a refusal of its status, or nil of any other error.
func refusalOf(err error) *idem.Refusal {
	code, ok := idemgrpc.CodeOf(err)
	if !ok || !code.Known() {
		return nil
	}
	refusal := &idem.Refusal{Code: code}
	s := status.Convert(err)
	for _, detail := range s.Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			refusal.RetryAfter = info.GetRetryDelay().AsDuration()
		}
	}
	if advice, ok := strings.CutPrefix(s.Message(), code.Title()+": "); ok {
		refusal.Advice = advice
	}
	return refusal
}
