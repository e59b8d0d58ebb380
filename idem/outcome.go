package idem

// Transport is the kind of a request. It decides which statuses settle an attempt. It is part
// of the operation in a fingerprint.
type Transport uint8

// The transports.
const (
	// TransportDirect is a call of [Engine.Do] by a queue consumer or a job. A nil error is
	// completed, and any other error is in doubt. A repeat never gets a nil error while the
	// outcome is not known.
	TransportDirect Transport = iota
	// TransportHTTP reads Response.Status as an HTTP status.
	TransportHTTP
	// TransportGRPC reads Response.Status as a gRPC code.
	TransportGRPC
)

// outcome is the meaning of a result for the attempt.
type outcome uint8

const (
	outcomeInDoubt   outcome = iota // may or may not have taken effect
	outcomeCompleted                // final, and repeats get this answer
	outcomeNoEffect                 // nothing happened, and a repeat runs afresh
)

// classify reads the result of a handler. gated says that the attempt passed the gate before
// an irreversible send ([CheckOwner] or [DownstreamKey]). Statuses for "not admitted" may
// then come from further down, so the outcome is in doubt.
func classify(t Transport, status int, gated bool) outcome {
	o := outcomeCompleted
	switch t {
	case TransportHTTP:
		o = classifyHTTP(status)
	case TransportGRPC:
		o = classifyGRPC(status)
	case TransportDirect:
	}
	if gated && o == outcomeNoEffect {
		return outcomeInDoubt
	}
	return o
}

// classifyCut reads the result of a handler whose context ended first, by the deadline or with
// the lease. It believes only a success. A refusal may come from the cancellation.
func classifyCut(t Transport, status int) outcome {
	if succeeded(t, status) {
		return outcomeCompleted
	}
	return outcomeInDoubt
}

func succeeded(t Transport, status int) bool {
	switch t {
	case TransportHTTP:
		return status >= 200 && status < 400
	case TransportGRPC:
		return status == grpcOK
	default:
		return true
	}
}

func classifyHTTP(status int) outcome {
	switch {
	case status == 401, status == 403, status == 425, status == 429:
		return outcomeNoEffect
	case status < 200, undecidedHTTP(status):
		return outcomeInDoubt
	}
	return outcomeCompleted
}

// undecided reports whether a status says by itself that nothing is decided, to every client.
// Only such an answer may reach the client while the outcome is in doubt.
func undecided(t Transport, status int) bool {
	switch t {
	case TransportHTTP:
		return undecidedHTTP(status)
	case TransportGRPC:
		return classifyGRPC(status) == outcomeInDoubt
	default:
		return false
	}
}

// undecidedHTTP names 499 too. Gateways write it for a call that was cancelled in its middle.
func undecidedHTTP(status int) bool { return status == 408 || status == 499 || status >= 500 }

func classifyGRPC(code int) outcome {
	switch code {
	case grpcUnauthenticated, grpcPermissionDenied, grpcResourceExhausted:
		return outcomeNoEffect
	case grpcOK, grpcInvalidArgument, grpcNotFound, grpcAlreadyExists,
		grpcFailedPrecondition, grpcOutOfRange, grpcUnimplemented:
		return outcomeCompleted
	}
	return outcomeInDoubt
}
