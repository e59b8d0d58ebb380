package idem

import (
	"fmt"
	"testing"
)

// Only scopes that have an execution open are remembered.
func TestOpenLimitForgetsScopes(t *testing.T) {
	l := openLimit{most: 1}
	requests := make([]request, 1000)
	for i := range requests {
		requests[i] = request{Operation: Operation{Scope: fmt.Sprint(i)}, first: &first{}}
		if err := l.enter(&requests[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range requests {
		l.leave(&requests[i])
		l.leave(&requests[i]) // again does nothing
	}
	if len(l.open) != 0 {
		t.Errorf("%d scopes are remembered, want 0", len(l.open))
	}
}
