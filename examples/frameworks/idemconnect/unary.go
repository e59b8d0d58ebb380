// Package idemconnect makes methods of Connect safe to retry, over all three of its protocols. It
// is an example to copy. It hands each call to the interceptor of package idemgrpc, so the rules,
// the refusals and the stored outcomes are those of gRPC.
//
//	protect, err := idemgrpc.New(engine, []idem.Policy{{Name: procedure, Scope: merchant, InDoubt: idem.LeaveUnknown()}})
//
//	func (s *server) CreatePayment(ctx context.Context, req *connect.Request[pb.CreatePaymentRequest]) (*connect.Response[pb.Payment], error) {
//		return idemconnect.Unary(ctx, s.protect, req, s.pay)
//	}
//
// Connect's interceptors run before it, and authentication is one of them. Headers that the method
// sets are not stored. Do not put the middleware for net/http around handlers of Connect. It would
// store an error of gRPC as a success, because its HTTP status is 200.
package idemconnect

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"

	spb "google.golang.org/genproto/googleapis/rpc/status"

	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// KeyHeader is the request header with the key.
const KeyHeader = "Idempotency-Key"

// Unary runs next at most once per key, or answers with its stored outcome. The policy is that of
// the procedure in protect.
func Unary[Req, Res any](ctx context.Context, protect *idemgrpc.Interceptors, req *connect.Request[Req],
	next func(context.Context, *connect.Request[Req]) (*connect.Response[Res], error)) (*connect.Response[Res], error) {
	call := &call{method: req.Spec().Procedure}
	ctx = grpc.NewContextWithServerTransportStream(ctx, call)
	ctx = metadata.NewIncomingContext(ctx, metadata.MD{strings.ToLower(KeyHeader): req.Header().Values(KeyHeader)})
	var live *connect.Response[Res]
	answer, err := protect.Unary()(ctx, req.Msg, &grpc.UnaryServerInfo{FullMethod: call.method},
		func(ctx context.Context, _ any) (any, error) {
			var err error
			if live, err = next(ctx, req); err != nil {
				return nil, toStatus(err)
			}
			return live.Msg, nil
		})
	if err != nil {
		failure := fromStatus(err)
		call.copyTo(failure.Meta())
		return nil, failure
	}
	msg, ok := answer.(*Res)
	if !ok {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("the stored outcome is a %T", answer))
	}
	if live == nil || live.Msg != msg {
		live = connect.NewResponse(msg)
	}
	call.copyTo(live.Header())
	return live, nil
}

// toStatus makes a status of gRPC of a method's error, with its details.
func toStatus(err error) error {
	s := &spb.Status{Code: int32(connect.CodeOf(err)), Message: err.Error()}
	if failure, ok := errors.AsType[*connect.Error](err); ok {
		s.Message = failure.Message()
		for _, d := range failure.Details() {
			s.Details = append(s.Details, &anypb.Any{TypeUrl: "type.googleapis.com/" + d.Type(), Value: d.Bytes()})
		}
	}
	return status.ErrorProto(s)
}

func fromStatus(err error) *connect.Error {
	s := status.Convert(err)
	failure := connect.NewError(connect.Code(s.Code()), errors.New(s.Message()))
	for _, packed := range s.Proto().GetDetails() {
		if detail, err := connect.NewErrorDetail(packed); err == nil {
			failure.AddDetail(detail)
		}
	}
	return failure
}

// call is the stream of gRPC as the interceptor sees it. It keeps metadata until the answer.
type call struct {
	method   string
	metadata metadata.MD
}

func (c *call) Method() string { return c.method }

func (c *call) SetHeader(md metadata.MD) error {
	c.metadata = metadata.Join(c.metadata, md)
	return nil
}

func (c *call) SendHeader(md metadata.MD) error { return c.SetHeader(md) }

// SetTrailer leaves out what only gRPC's own clients read.
func (c *call) SetTrailer(metadata.MD) error { return nil }

func (c *call) copyTo(header http.Header) {
	for name, values := range c.metadata {
		for _, v := range values {
			header.Add(name, v)
		}
	}
}
