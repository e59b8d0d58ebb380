package rpc

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var errStopping = status.Error(codes.Unavailable, "The server is stopping.")

// untilStopping ends streams of requests that wait for the next one when the
// server stops: a tool that keeps reflection open would keep the server alive.
func (s *Server) untilStopping(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if !info.IsClientStream {
		return next(srv, ss)
	}
	return next(srv, &impatient{ss, s.stopping})
}

// impatient is a stream whose RecvMsg does not outwait the server.
type impatient struct {
	grpc.ServerStream

	stopping <-chan struct{}
}

// RecvMsg implements [grpc.ServerStream]. After errStopping the message must not
// be looked at; what reads into it ends with the stream.
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
