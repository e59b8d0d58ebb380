// Package rpc is the sample's gRPC: the same service as package server's, over
// the same ledger, engine and keys.
//
// The order of interceptors is measure, recover, authenticate, validate,
// idempotency, handler: that of the HTTP routes, for the same reasons. A request
// that may not be made or makes no sense leaves its key untouched.
//
// Every error but that of a panic carries an ErrorInfo, whose reason is the
// code that HTTP has, in upper snake case. Its domain is [Domain] for codes of
// the sample, and that of package idemgrpc for those of the engine.
//
// Beside the service there is idemkeeper.v1.Idempotency, for the state of the
// merchant's keys, used over either transport.
//
// Health and reflection want no API key and are never idempotent. SERVING means
// what /readyz means.
//
// Beside the contract: fields that are not known are refused, as members are
// over HTTP, on the methods that move money.
package rpc
