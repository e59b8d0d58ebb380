package adapter

import (
	"errors"
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// No client sees an error that is no refusal.
func TestRefusalOf(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]idem.Code{
		errors.New("secret"): idem.CodeInternal,
		fmt.Errorf("around: %w", idem.NewRefusal(idem.CodeKeyReused, nil)): idem.CodeKeyReused,
	} {
		if got := RefusalOf(err).Code; got != want {
			t.Errorf("RefusalOf(%v) = %s, want %s", err, got, want)
		}
	}
}

// Methods without effects need no key. A method is its exact text (RFC 9110, section 9.1).
func TestIsSafe(t *testing.T) {
	t.Parallel()
	for method, want := range map[string]bool{"": true, "GET": true, "HEAD": true, "OPTIONS": true, "TRACE": true, "QUERY": true,
		"POST": false, "PUT": false, "PATCH": false, "DELETE": false, "CONNECT": false, "query": false, "get": false, "REPORT": false} {
		if got := IsSafe(method); got != want {
			t.Errorf("IsSafe(%q) = %t, want %t", method, got, want)
		}
	}
}
