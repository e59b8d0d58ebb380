package idem

import "github.com/idemkeeper/idemkeeper/idem/driver"

// Response is the answer of a handler, as repeats get it. Do not change it after the engine has it.
//
// It has the fields of [driver.Response], which is the same as a store keeps it, and either can be
// converted to the other.
type Response struct {
	// Status is the HTTP status or the gRPC code. A caller of [Engine.Do] gives it a meaning
	// of its own.
	Status int
	// Header and Trailer hold the fields that are replayed with the body. They have only
	// names on the allow-list, and all values of each in their order.
	Header  map[string][]string
	Trailer map[string][]string
	// Body is the body of the answer, exactly as it was sent.
	Body []byte
	// Omitted says that the body could not be kept, because it was streamed, hijacked or
	// over the limit. Such a result cannot be replayed.
	Omitted bool
	// Span is that of the execution, if a [telemetry.Recorder] records it. The engine sets it, and a
	// replay is linked to it.
	Span driver.Span
}
