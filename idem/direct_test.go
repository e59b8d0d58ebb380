package idem_test

import (
	"context"
	"runtime"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// direct is an operation of a queue consumer.
func (b *bundle) direct(key, body string) idem.Operation {
	op := b.operation(key, body)
	op.Transport, op.Fingerprint = idem.TransportDirect, fingerprintOf("direct", body)
	return op
}

// A consumer acknowledges its message when Do returns nil. So a repeat must
// never be nil while the outcome is unknown.
func TestDirectHandlerThatDoesNotReturnLeavesAnUnknownOutcome(t *testing.T) {
	for name, crash := range map[string]func(){
		"panic":  func() { panic("boom") },
		"Goexit": runtime.Goexit,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { _ = recover() }()
				_, _ = b.engine.Do(t.Context(), b.direct("k1", "{}"), func(context.Context) (idem.Response, error) {
					crash()
					return idem.Response{}, nil
				})
			})
			wg.Wait()
			b.wantState("k1", driver.StateUnknown)
			for range 2 {
				_, err := b.engine.Do(t.Context(), b.direct("k1", "{}"), b.pay)
				b.wantRefused(err, idem.CodeOutcomeUnknown)
			}
			b.wantRuns(0)
		})
	}
}

// A resolver that knows nothing may keep a response with the unknown outcome.
// It is no success either.
func TestDirectRepeatOfAnUnknownOutcomeWithAResponseIsRefused(t *testing.T) {
	b := setup(t, parts{})
	op := b.direct("k1", "{}")
	http := op
	http.Transport = idem.TransportHTTP // the same request, as another transport ran it
	if _, err := b.engine.Do(t.Context(), http, answers(500)); err != nil {
		t.Fatalf("Do() = %v, want the handler's answer", err)
	}
	b.wantState("k1", driver.StateUnknown)
	_, err := b.engine.Do(t.Context(), op, b.pay)
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	b.wantRuns(0)
}

// Do without a handler is refused before anything is consumed.
func TestNilHandlerIsRefusedAtOnce(t *testing.T) {
	b := setup(t, parts{})
	_, err := b.engine.Do(t.Context(), b.direct("k1", "{}"), nil)
	b.wantRefused(err, idem.CodeInternal)
	b.wantState("k1", driver.StateNone)
	res, err := b.engine.Do(t.Context(), b.direct("k1", "{}"), b.pay)
	b.wantPaid(res, err, 1, false)
}
