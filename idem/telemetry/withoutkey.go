package telemetry

import "time"

// WithoutKey counts the requests of a route that came without a key, where the key is optional.
type WithoutKey struct {
	Route string
	Count uint64
	Last  time.Time // when the latest of them came
}
