package idem

import (
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// ErrFingerprintVersion says that this build does not know the version of a fingerprint,
// because a newer build wrote the record.
var ErrFingerprintVersion = errors.New("idem: unknown fingerprint version")

// Code is the reason of a refusal, as clients see it.
type Code string

// The codes. [Code.HTTPStatus], [Code.GRPCCode] and [Code.Title] read one table with their
// statuses and titles.
const (
	CodeKeyMissing        Code = "key-missing"
	CodeKeyInvalid        Code = "key-invalid"
	CodeBodyInvalid       Code = "body-invalid"
	CodeTokenUnknown      Code = "token-unknown"
	CodeInProgress        Code = "in-progress"
	CodeKeyReused         Code = "key-reused"
	CodeOutcomeUnknown    Code = "outcome-unknown"
	CodeKeyExpired        Code = "key-expired"
	CodeResultUnavailable Code = "result-unavailable"
	CodeOwnershipLost     Code = "ownership-lost"
	CodeUnavailable       Code = "unavailable"
	CodeStoreLost         Code = "store-lost"
	CodeBodyTooLarge      Code = "body-too-large"
	CodeBodyIncomplete    Code = "body-incomplete"
	CodeTooManyOpen       Code = "too-many-open"
	CodeInternal          Code = "internal"
)

// Numbers of gRPC codes (google.golang.org/grpc/codes). This package does not import that one.
const (
	grpcOK                 = 0
	grpcInvalidArgument    = 3
	grpcNotFound           = 5
	grpcAlreadyExists      = 6
	grpcPermissionDenied   = 7
	grpcResourceExhausted  = 8
	grpcFailedPrecondition = 9
	grpcAborted            = 10
	grpcOutOfRange         = 11
	grpcUnimplemented      = 12
	grpcInternal           = 13
	grpcUnavailable        = 14
	grpcUnauthenticated    = 16
)

// answer is a row in the table of the refusals for clients. Titles for 400, 409 and 422 are
// those of draft-ietf-httpapi-idempotency-key-header-07, section 2.7, which expired on 2026-04-18.
type answer struct {
	http, grpc int
	title      string
	detail     string
	retry      bool // the client may send the request again later
}

var answers = map[Code]answer{
	CodeKeyMissing: {400, grpcInvalidArgument, "Idempotency-Key is missing",
		"This operation needs an Idempotency-Key; send one key per operation and repeat it with every retry.", false},
	CodeKeyInvalid: {400, grpcInvalidArgument, "Idempotency-Key is malformed",
		"An Idempotency-Key is one value of 1 to 255 printable ASCII characters, bare or as a quoted string.", false},
	CodeBodyInvalid: {400, grpcInvalidArgument, "Request body is malformed",
		"The request body is not well-formed for its media type.", false},
	CodeTokenUnknown: {403, grpcPermissionDenied, "Token is unknown",
		"This operation takes a one-time token that this server issued to the caller and that has not expired.", false},
	CodeInProgress: {409, grpcAborted, "A request is outstanding for this Idempotency-Key",
		"The first request with this key has not finished; send it again later to get its outcome.", true},
	CodeKeyReused: {422, grpcFailedPrecondition, "Idempotency-Key is already used",
		"This key was used with another request; if this is a retry of the same operation, do not take a new key, but send the first request again unchanged; only a new operation takes a new key.", false},
	CodeOutcomeUnknown: {409, grpcFailedPrecondition, "Outcome is unknown",
		"It is not known whether the first request took effect, and it is not run again until that is settled; ask again later with the same key, and do not take a new one.", false},
	CodeKeyExpired: {409, grpcFailedPrecondition, "Idempotency-Key has expired",
		"The operation was completed with this key and its result is no longer kept; it is not run again.", false},
	CodeResultUnavailable: {409, grpcFailedPrecondition, "Result is unavailable",
		"The operation was completed with this key and its result could not be kept; it is not run again.", false},
	CodeOwnershipLost: {503, grpcUnavailable, "Ownership was lost",
		"The server lost its lock while it worked on the request; send it again to get the outcome.", true},
	CodeUnavailable: {503, grpcUnavailable, "Service unavailable",
		"The request was not started, or its outcome is not known yet; send it again with the same key.", true},
	CodeStoreLost: {503, grpcUnavailable, "Service unavailable",
		"The server lost its memory of keys and refuses to run operations until an operator has looked.", true},
	CodeBodyTooLarge: {413, grpcResourceExhausted, "Request body is too large",
		"The request body is over the limit of this operation.", false},
	CodeBodyIncomplete: {408, grpcUnavailable, "Request body is incomplete",
		"The request body did not arrive in full, and nothing was started; send the request again with the same key.", true},
	CodeTooManyOpen: {429, grpcResourceExhausted, "Too many operations are open",
		"Too many operations of this caller run at once, and this one was not started; send it again later with the same key.", true},
	CodeInternal: {500, grpcInternal, "Internal error",
		"The server is not set up for this request.", false},
}

// Known reports whether c is one of the codes of this package.
func (c Code) Known() bool {
	_, ok := answers[c]
	return ok
}

// HTTPStatus is the status of an HTTP answer with this code.
func (c Code) HTTPStatus() int { return c.answer().http }

// GRPCCode is the number of the gRPC code.
func (c Code) GRPCCode() int { return c.answer().grpc }

// Title is a short, fixed summary for people.
func (c Code) Title() string { return c.answer().title }

// Detail tells the client how to go on. It holds nothing about the request.
func (c Code) Detail() string { return c.answer().detail }

func (c Code) answer() answer {
	if a, ok := answers[c]; ok {
		return a
	}
	return answers[CodeInternal]
}

// Refusal is the error for every request that the engine did not execute and could not answer
// with a stored outcome. Clients see everything except Err.
type Refusal struct {
	Code       Code
	RetryAfter time.Duration // 0 asks the client not to send it again unchanged
	Err        error         // the cause, for logs; may be nil
	// Advice replaces the Detail of the code for the client, unless it is "". It holds nothing
	// of the request's content.
	Advice string
	// OperationID names the operation for the client and its support, if its outcome is in
	// doubt. It does not reveal the key.
	OperationID string
	// MayHaveHappened says that the operation may have taken effect. A client that takes a new
	// key for it may pay twice.
	MayHaveHappened bool
}

// Detail tells the client how to go on. It is Advice, or the detail of the code.
func (r *Refusal) Detail() string {
	switch {
	case r.Advice != "":
		return r.Advice
	case r.Code == CodeOutcomeUnknown && r.RetryAfter > 0:
		return "It is not known yet whether the first request took effect; send it again later with the same key."
	}
	return r.Code.Detail()
}

// refuse makes a refusal. It asks the client for the default pause if a repeat can help.
//
//go:noinline
func refuse(code Code, err error) *Refusal {
	r := &Refusal{Code: code, Err: err}
	if code.answer().retry {
		r.RetryAfter = defaultRetryAfter
	}
	return r
}

// defaultRetryAfter is the smallest pause in the Retry-After header, in whole seconds.
const defaultRetryAfter = time.Second

// Error returns the code and the internal cause, for logs and not for clients.
func (r *Refusal) Error() string {
	if r.Err == nil {
		return "idem: refused: " + string(r.Code)
	}
	return fmt.Sprintf("idem: refused: %s: %v", r.Code, r.Err)
}

// Unwrap returns the internal cause.
func (r *Refusal) Unwrap() error { return r.Err }

// NewRefusal is for adapters. It makes the refusal of a request before the engine sees it, for
// example without a key or with a body over the limit. Clients do not see err.
func NewRefusal(code Code, err error) *Refusal { return refuse(code, err) }

// storeRefusal is the refusal for an error of the store.
func storeRefusal(err error) *Refusal {
	switch {
	case errors.Is(err, driver.ErrStoreLost):
		return refuse(CodeStoreLost, err)
	case errors.Is(err, driver.ErrStaleFence):
		return refuse(CodeOwnershipLost, err)
	case errors.Is(err, driver.ErrCorruptRecord): // there was an attempt, and its record is unreadable
		return refuse(CodeOutcomeUnknown, err)
	default: // also for a record of a newer build, because an instance of that build can answer
		return refuse(CodeUnavailable, err)
	}
}

// asRefusal returns err itself if that is a refusal.
func asRefusal(code Code, err error) *Refusal {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r
	}
	return refuse(code, err)
}

// withCause adds another error to a refusal, for logs.
func withCause(err, cause error) error {
	if r, ok := errors.AsType[*Refusal](err); ok && cause != nil {
		r.Err = errors.Join(r.Err, cause)
	}
	return err
}

// unreadable reports whether an error of a store is final for a record. The call did nothing,
// and a retry gets the same answer.
func unreadable(err error) bool {
	return errors.Is(err, driver.ErrNewerRecord) || errors.Is(err, driver.ErrCorruptRecord)
}
