package idemgrpc

import (
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// received is a server stream whose one request has been read.
type received struct {
	grpc.ServerStream // the client's

	request proto.Message // nil once the handler has it
}

// RecvMsg hands over the request, which has been read.
func (r *received) RecvMsg(m any) error {
	if r.request == nil {
		return io.EOF
	}
	req, dst := r.request, messageOf(m)
	if dst == nil {
		return status.Errorf(codes.Internal, "idemgrpc: cannot receive into a %T", m)
	}
	r.request = nil
	proto.Reset(dst)
	if dst.ProtoReflect().Descriptor() == req.ProtoReflect().Descriptor() {
		proto.Merge(dst, req)
		return nil
	}
	b, err := proto.Marshal(req)
	if err == nil {
		err = proto.Unmarshal(b, dst)
	}
	if err != nil {
		return status.Errorf(codes.Internal, "idemgrpc: receiving into a %T: %v", m, err)
	}
	return nil
}
