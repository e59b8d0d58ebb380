package telemetry

import "time"

// Running describes the handlers that run under a lock.
type Running struct {
	Count  int
	Oldest time.Duration // the longest run time so far; 0 without a handler
}

// Engine tells how many handlers it runs. Every *idem.Engine does.
type Engine interface {
	// Running counts the handlers that run now. It is cheap, and safe for concurrent use.
	Running() Running
}
