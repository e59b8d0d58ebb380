package kit

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Answer is the answer to a request over one of the transports, or the reason why
// there is none.
type Answer struct {
	Payment  Payment // that was made; empty in a refusal
	Code     string  // of a refusal
	Replayed bool    // marked as a stored outcome
	retry    bool    // with a hint when to send it again
	Wire     string  // message or status, as it came
	FormErr  error   // what its form lacks, whatever it says
	Err      error   // there is no answer: nobody knows what happened
	Took     time.Duration

	httpReply // of an answer over HTTP
	grpcReply // of an answer over gRPC
}

type httpReply struct {
	Status  int
	Header  http.Header
	Body    string
	problem struct {
		Type, Title, Detail, Code string
		Status                    int
	}
}

type grpcReply struct {
	RPC                     *status.Status
	MetaHeader, MetaTrailer metadata.MD // header and trailer
}

func (a Answer) String() string {
	if a.Err != nil {
		return fmt.Sprintf("error %v after %v", a.Err, a.Took)
	}
	over := fmt.Sprint("HTTP ", a.Status)
	if a.RPC != nil {
		over = fmt.Sprint("gRPC ", a.RPC.Code())
	}
	s := fmt.Sprintf("%s %s %.400q after %v (replayed %v, says when to retry %v)", over, a.Code, a.Wire, a.Took, a.Replayed, a.retry)
	if a.FormErr != nil {
		s += fmt.Sprintf(", which is wrong: %v", a.FormErr)
	}
	return s
}

// IsPayment reports whether the answer is a payment that was made.
func (a Answer) IsPayment() bool { return a.Err == nil && a.Code == "" && a.Payment.ID != "" }

// IsRefusal reports whether the answer is a refusal with this code in the form that
// its transport prescribes.
func (a Answer) IsRefusal(code string) bool {
	return a.Err == nil && a.FormErr == nil && a.Code == code
}

// AsksToRetry reports whether the client is to send the request again. Every answer
// that may change by itself asks for it.
func (a Answer) AsksToRetry() bool { return a.Err != nil || a.retry }

// problem is how each transport shows a code.
type problem struct {
	status int // HTTP
	title  string
	code   codes.Code // gRPC
	domain string     // of its ErrorInfo
	retry  bool       // worth sending again as it is: Retry-After, RetryInfo
}

// Domains of ErrorInfo: the middleware's codes, and the sample's own.
const (
	middlewareDomain = "idemkeeper"
	sampleDomain     = "payments.v1"
)

// problems is the table of refusals (docs/design.md, section 8) and those of the
// sample. Every refusal in these tests is compared with its row.
var problems = map[string]problem{
	"key-missing":        {400, "Idempotency-Key is missing", codes.InvalidArgument, middlewareDomain, false},
	"key-invalid":        {400, "Idempotency-Key is malformed", codes.InvalidArgument, middlewareDomain, false},
	"body-invalid":       {400, "Request body is invalid", codes.InvalidArgument, middlewareDomain, false},
	"token-unknown":      {403, "Token is unknown", codes.PermissionDenied, middlewareDomain, false},
	"in-progress":        {409, "A request is outstanding for this Idempotency-Key", codes.Aborted, middlewareDomain, true},
	"key-reused":         {422, "Idempotency-Key is already used", codes.FailedPrecondition, middlewareDomain, false},
	"outcome-unknown":    {409, "Outcome is unknown", codes.FailedPrecondition, middlewareDomain, false},
	"key-expired":        {409, "Idempotency-Key has expired", codes.FailedPrecondition, middlewareDomain, false},
	"result-unavailable": {409, "Result is unavailable", codes.FailedPrecondition, middlewareDomain, false},
	"ownership-lost":     {503, "Ownership was lost", codes.Unavailable, middlewareDomain, true},
	"unavailable":        {503, "Service unavailable", codes.Unavailable, middlewareDomain, true},
	"store-lost":         {503, "Service unavailable", codes.Unavailable, middlewareDomain, true},
	"body-too-large":     {413, "Request body is too large", codes.ResourceExhausted, middlewareDomain, false},
	"body-incomplete":    {408, "Request body is incomplete", codes.Unavailable, middlewareDomain, true},
	"too-many-open":      {429, "Too many operations are open", codes.ResourceExhausted, middlewareDomain, true},
	"unauthorized":       {401, "API key is missing or unknown", codes.Unauthenticated, sampleDomain, false},
	"insufficient-funds": {402, "Insufficient funds", codes.FailedPrecondition, sampleDomain, false},
	"ledger-unavailable": {503, "Ledger is unavailable", codes.Unavailable, sampleDomain, true},
	"account-unknown":    {404, "Account is unknown", codes.NotFound, sampleDomain, false},
}

// internals are words of errors that clients must not see.
var internals = regexp.MustCompile(`(?i)zookeeper|redis|sqlite|\bzk\b|idem:|\bdial\b|\bEOF\b|i/o timeout|context |127\.0\.0\.1|/lock|goroutine|\.go\b`)

// checkText wants a text without internals in a refusal.
func (a Answer) checkText(text string) error {
	switch {
	case text == "":
		return errors.New("a refusal without a text")
	case internals.MatchString(text):
		return fmt.Errorf("internals in %q", text)
	}
	return nil
}

// checkRetryHint wants a live refusal to say when to retry if its code does. A
// replayed refusal repeats what the handler said. An unknown outcome says so if a resolver works on it.
func (a Answer) checkRetryHint(p problem) error {
	if a.Replayed || a.retry == p.retry || a.IsRefusal("outcome-unknown") {
		return nil
	}
	return fmt.Errorf("says when to retry: %v, want %v", a.retry, p.retry)
}
