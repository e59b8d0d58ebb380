// Package grpctest is the suite for adapters of gRPC. It serves a real listener with the real
// engine, on the in-process lock and token store, and calls it with a client that has no
// interceptors.
//
// [Run] takes an [Adapter]. Its Protect returns the options of a [google.golang.org/grpc.Server]
// whose methods are protected as [Options] says. The suite knows nothing else of the adapter, so
// it checks what a client and a handler see. The suite_test.go of package idemgrpc is a short
// example.
package grpctest
