// Package crashgrpc makes points of the calls of a gRPC client, and answers for the kit of the calls that a test makes.
package crashgrpc

import (
	"context"
	"math"
	"net/http"
	"strconv"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemkeeper/idemkeeper/crashtest"
)

// UnaryClient makes a point of each unary call of a service to another one. A call whose connection breaks returns UNAVAILABLE.
func UnaryClient(env *crashtest.Env) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		sent, answered := false, error(nil)
		err := env.Call(ctx, method, nil, func() error {
			answered = invoke(ctx, method, req, reply, conn, opts...)
			sent = true
			return answered
		})
		return asStatus(ctx, err, sent && err == answered) //nolint:errorlint // the same error
	}
}

// StreamClient makes a point of the start of each stream.
func StreamClient(env *crashtest.Env) grpc.StreamClientInterceptor {
	return func(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		ctx, cancel := context.WithCancel(ctx)
		var stream grpc.ClientStream
		sent, answered := false, error(nil)
		err := env.Call(ctx, method, cancel, func() error {
			stream, answered = open(ctx, desc, conn, method, opts...)
			sent = true
			return answered
		})
		if err != nil {
			cancel()
			return nil, asStatus(ctx, err, sent && err == answered) //nolint:errorlint // the same error
		}
		context.AfterFunc(stream.Context(), cancel)
		return stream, nil
	}
}

// asStatus returns an error of the kit as gRPC does.
func asStatus(ctx context.Context, err error, itsOwn bool) error {
	switch {
	case err == nil || itsOwn:
		return err
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	return status.Error(codes.Unavailable, err.Error())
}

// Answer turns the result of a call into an answer, for [crashtest.Subject.Request]. OK is a success. CANCELLED, UNKNOWN, DEADLINE_EXCEEDED, ABORTED, INTERNAL, UNAVAILABLE, DATA_LOSS and
// RESOURCE_EXHAUSTED ask for another try. The detail ErrorInfo with the reason OUTCOME_UNKNOWN is in doubt, for now if there is a RetryInfo. Anything else is
// a refusal.
func Answer(reply proto.Message, err error) (crashtest.Answer, error) {
	if err == nil {
		body, err := protojson.Marshal(reply)
		return crashtest.Answer{Status: int(codes.OK), Body: string(body), Outcome: crashtest.Success}, err
	}
	s := status.Convert(err)
	a := crashtest.Answer{Status: int(s.Code()), Body: s.Message(), Outcome: crashtest.Refusal}
	switch s.Code() {
	case codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.Unavailable, codes.DataLoss, codes.ResourceExhausted:
		a.Outcome = crashtest.Again
	}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case interface{ GetReason() string }:
			if d.GetReason() == "OUTCOME_UNKNOWN" {
				a.Outcome = crashtest.InDoubt
			}
		case interface{ GetRetryDelay() *durationpb.Duration }:
			a.Header = http.Header{"Retry-After": {strconv.Itoa(int(math.Ceil(d.GetRetryDelay().AsDuration().Seconds())))}}
		}
	}
	return a, nil
}
