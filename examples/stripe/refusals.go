package stripe

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// apiError is the error object of Stripe's API (https://docs.stripe.com/api/errors).
type apiError struct {
	Type    string `json:"type"`
	Code    string `json:"code"`
	Message string `json:"message"`
	DocURL  string `json:"doc_url,omitempty"`
}

// Refusals is for Refuse of [exchange.Config]. documentation is the URL of the page that
// describes the codes, or "".
func Refusals(documentation string) func(http.ResponseWriter, *http.Request, *idem.Refusal) {
	return func(w http.ResponseWriter, _ *http.Request, r *idem.Refusal) {
		status, e := errorOf(r)
		if documentation != "" {
			e.DocURL = documentation + "#" + string(r.Code)
		}
		body, err := json.Marshal(map[string]apiError{"error": e})
		if err != nil {
			panic(err) // text always marshals
		}
		retry := "false"
		if r.RetryAfter > 0 {
			retry = "true"
		}
		w.Header().Set("Stripe-Should-Retry", retry)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_, _ = w.Write(body) // a client that has gone asks again
	}
}

// errorOf maps a refusal to the status and the error of Stripe's API.
func errorOf(r *idem.Refusal) (int, apiError) {
	status := r.Code.HTTPStatus()
	e := apiError{
		Type:    "invalid_request_error",
		Code:    strings.ReplaceAll(string(r.Code), "-", "_"),
		Message: r.Code.Title() + ": " + r.Detail(),
	}
	switch {
	case r.Code == idem.CodeInProgress:
		status, e.Code = http.StatusTooManyRequests, "lock_timeout"
	case r.Code == idem.CodeOutcomeUnknown: // Stripe's clients read 500 as "it may have happened"
		status, e.Type = http.StatusInternalServerError, "api_error"
	case r.Code == idem.CodeKeyReused:
		e.Type = "idempotency_error"
	case status >= http.StatusInternalServerError, status == http.StatusConflict:
		e.Type = "api_error"
	}
	return status, e
}
