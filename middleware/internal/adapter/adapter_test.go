package adapter

import (
	"errors"
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

// The engine may refuse in place of a handler that relayed a refusal. The client gets the engine's then.
func TestIsRelayed(t *testing.T) {
	t.Parallel()
	relayed := Relayed(idem.CodeInProgress)
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{relayed, true},
		{fmt.Errorf("settled: %w", relayed), true},
		{idem.NewRefusal(idem.CodeOwnershipLost, relayed), false},
		{errors.New("x"), false},
		{Relayed(idem.Code("")), false},
	} {
		if got := IsRelayed(tt.err); got != tt.want {
			t.Errorf("IsRelayed(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

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
