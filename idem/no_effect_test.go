package idem

import (
	"context"
	"testing"
)

// What a handler has left running must not release the key of a handler that has
// answered.
func TestNoEffectIsNotDeclaredOnceTheHandlerHasReturned(t *testing.T) {
	x := &execution{cancel: func(error) {}}
	x.Context = context.Background()
	x.end()
	NoEffect(x)
	if x.noEffect.Load() {
		t.Error("an execution that has ended was declared to have had no effect")
	}
}
