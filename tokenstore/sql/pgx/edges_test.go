package pgxstore

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

func TestJoinedWantsAStoreAndAPool(t *testing.T) {
	t.Parallel()
	if _, err := Joined(nil, nil); err == nil {
		t.Error("Joined(nil, nil) succeeds")
	}
	if _, err := Tx(context.Background()); !errors.Is(err, idem.ErrNoExecution) {
		t.Errorf("Tx() outside of an execution = %v, want %v", err, idem.ErrNoExecution)
	}
}
