package idem

// Response is the outcome of an execution as a transport stores and replays
// it. It is not changed after it was handed to the engine.
type Response struct {
	// Status is the HTTP status, the gRPC code, or what the caller of
	// [Engine.Do] makes of it.
	Status int
	// Header and Trailer hold what is replayed beside the body: only names on
	// the allow-list, all values of each, in order.
	Header  map[string][]string
	Trailer map[string][]string
	// Body is the answer's body, exactly as it was sent.
	Body []byte
	// Omitted says that the body could not be kept: it was streamed, hijacked
	// or over the limit. Such a result cannot be replayed.
	Omitted bool
}

// size is about how many bytes a store keeps of r, beside a few for lengths.
func (r *Response) size() int64 {
	return int64(fieldsSize(r.Header) + fieldsSize(r.Trailer) + len(r.Body))
}
