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
