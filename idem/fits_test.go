package idem_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A route that requires more than its engine gives is refused at the wiring, and with Do at the request, with nothing consumed.
func TestRouteThatRequiresMoreIsRefused(t *testing.T) {
	t.Parallel()
	store := memorystore.New()
	engine, err := idem.New(memorylock.New(), store)
	if err != nil {
		t.Fatal(err)
	}
	policy := idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, Require: guarantee.AtMostOnce}
	_, err = engine.Fit(policy)
	for _, said := range []string{"POST /pay", "a crash is not covered", "tokenstore/redis"} {
		if err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("Fit() = %v, want it to say %q", err, said)
		}
	}
	op := idem.Operation{Key: "k", Policy: &policy, Fingerprint: idem.FingerprintOf("pay")}
	_, err = engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) {
		t.Error("the handler ran")
		return idem.Response{}, nil
	})
	var refused *idem.Refusal
	if !errors.As(err, &refused) || refused.Code != idem.CodeInternal || !strings.Contains(err.Error(), "a crash is not covered") {
		t.Errorf("Do() = %v, want it refused as internal", err)
	}
	policy.Require = guarantee.Need{Effect: guarantee.Elsewhere, Through: guarantee.Repeat | guarantee.Outage}
	if _, err := engine.Fit(policy); err != nil {
		t.Errorf("Fit() = %v of what a process gives", err)
	}

	g, err := engine.Guarantee(policy)
	if err != nil || g.Setup != "lock in this process, records in this process" || !g.Of(guarantee.Elsewhere).Once.Has(guarantee.Repeat) {
		t.Errorf("Guarantee() = %+v, %v", g, err)
	}
	if err := engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := engine.Guarantee(policy); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Guarantee() of a closed engine = %v", err)
	}
}
